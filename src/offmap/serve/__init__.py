"""The scoring service, its durable pile of unknown inputs, and the page on which people name them."""
