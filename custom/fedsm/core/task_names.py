"""Names that the server and the sites share."""

TASKS = (REGISTER, TRAIN, VALIDATE, EVALUATE) = ("fedsm_register", "fedsm_train", "fedsm_validate", "fedsm_evaluate")
SUM, OPEN = "fedsm_sum", "fedsm_open"  # after training, where `secure_sum` asks for it
MIX = "fedsm_mix"  # after the last round, where `personal_mix` asks for it
SCORE = "fedsm_score"  # of an evaluation, a job of its own
AUDIT = "fedsm_audit"  # of a privacy audit, the same
OF_ALL_MODELS = (EVALUATE, SCORE, AUDIT)  # they take longer than a round: the models are as many as the sites
SIMULATED_JOB = "simulate_job"  # FLARE's job id in the simulator, where all sites share one machine
DEFAULT_STUDY = "default"  # FLARE's name of the study of a job that names none
