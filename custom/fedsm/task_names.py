"""The tasks that the server gives to the sites."""

TASKS = (REGISTER, TRAIN, VALIDATE, EVALUATE) = ("fedsm_register", "fedsm_train", "fedsm_validate", "fedsm_evaluate")
