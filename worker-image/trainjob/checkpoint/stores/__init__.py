"""Where files lie: the Store protocol, folders and S3, and how bytes move and are summed."""
