"""Storage in an object store that speaks S3: `store.S3Store` is what the rest of `checkpoint` sees of it.

`store` knows names, `sending` and `receiving` files in `parts`, `ways` what a way for contents promises (`bodies` over
connections of its own, `boto` through boto3), `requests` the client and tries, `genuine` which replies are the store's,
`errors` what a refusal means, `settings` the environment, `probe` what a store must be able to do. Imports nothing
outside the standard library; boto3 comes with the first request.
"""
