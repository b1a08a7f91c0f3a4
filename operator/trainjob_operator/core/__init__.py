"""Pure decisions. No I/O, no clock, no environment, no logging, no kopf, kubernetes or aiohttp in here."""
