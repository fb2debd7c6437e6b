"""How a FedSM job is put together: the recipe, the settings of tasks and methods, the command line."""
