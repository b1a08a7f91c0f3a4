"""The objects that a job asks for: Service and pods, with everything in them."""
