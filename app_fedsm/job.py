import argparse

from nvflare.recipe import PocEnv, ProdEnv, SimEnv

from app_fedsm.environments import results_folder, sites_of
from app_fedsm.recipes import FedSMRecipe, one_line_errors


def build_recipe(args: argparse.Namespace) -> FedSMRecipe:
    return FedSMRecipe(task=args.task, num_rounds=args.rounds, min_clients=2, size=64, batch_size=4, lr=3e-3)


@one_line_errors()
def main() -> None:
    parser = argparse.ArgumentParser(description="A FedSM job, run by FLARE: python job.py --env sim --data demo_data")
    parser.add_argument("--env", choices=["sim", "poc", "prod"], default="sim")
    for name, default in {"task": "retinal", "rounds": 40, "data": "demo_data", "kit": "."}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    env = ProdEnv(args.kit) if args.env == "prod" else (PocEnv if args.env == "poc" else SimEnv)(**sites_of(args.data))
    print("results:", results_folder(env, build_recipe(args).execute(env)))


if __name__ == "__main__":
    main()
