"""offmap tells you when your model is off the map, and redraws the map."""
