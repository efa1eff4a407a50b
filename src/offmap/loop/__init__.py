"""One round and many: detect the unknown, discover its classes, learn them, check for forgetting, calibrate anew."""
