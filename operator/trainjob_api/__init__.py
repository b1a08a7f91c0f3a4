"""What both sides of TrainJob agree on: the contract, the object's models, validation and the CRD.

Importing this package pulls in nothing but itself: `trainjob_api.contract` and `trainjob_api.wire` are standard
library only and run on Python 3.9, because worker containers import them; the models need pydantic.
"""
