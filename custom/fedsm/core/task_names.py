"""Names that the server and the sites share."""

TASKS = (REGISTER, TRAIN, VALIDATE, EVALUATE) = ("fedsm_register", "fedsm_train", "fedsm_validate", "fedsm_evaluate")
SUM, OPEN = "fedsm_sum", "fedsm_open"  # after training, where `secure_sum` asks for it
MIX = "fedsm_mix"  # after the last round, where `personal_mix` asks for it
SCORE = "fedsm_score"  # of an evaluation, a job of its own
SIMULATED_JOB = "simulate_job"  # FLARE's job id in the simulator, where all sites share one machine
DEFAULT_STUDY = "default"  # FLARE's name of the study of a job that names none
