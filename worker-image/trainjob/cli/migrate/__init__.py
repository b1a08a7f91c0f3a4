"""`tj migrate`: scripts written for Ray Train, and manifests of Kubeflow, become ours, with a word on what differs."""
