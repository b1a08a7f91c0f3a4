"""What ended an attempt, and what that costs."""
