"""What all rooms share: settings, errors, tensors, Dice, names, files. Imports no other room."""
