import argparse
from pathlib import Path

from nvflare.recipe import PocEnv, ProdEnv, SimEnv

from app_fedsm.recipes import FedSMRecipe, one_line_errors
from fedsm.data.site_folder import list_sites


def build_recipe(args: argparse.Namespace) -> FedSMRecipe:
    return FedSMRecipe(task=args.task, num_rounds=args.rounds, min_clients=2, size=64, batch_size=4, lr=3e-3)


@one_line_errors()
def main() -> None:
    parser = argparse.ArgumentParser(description="A FedSM job, run by FLARE: python job.py --env sim --data demo_data")
    parser.add_argument("--env", choices=["sim", "poc", "prod"], default="sim")
    for name, default in {"task": "retinal", "rounds": 40, "data": "demo_data", "kit": "."}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--sites", nargs="+", help="names of folders in --data; default: all of them (sim and poc)")
    args = parser.parse_args()
    if args.env == "prod":
        env = ProdEnv(args.kit)
    else:
        names = args.sites or list_sites(Path(args.data))
        local = {"num_clients": len(names), "clients": names, "extra": {"data": args.data}}
        env = SimEnv(**local) if args.env == "sim" else PocEnv(**local)
    result = build_recipe(args).execute(env).get_result(clean_up=False)
    print("results:", Path(result) / ("server/simulate_job" if args.env == "sim" else "workspace") if result else None)


if __name__ == "__main__":
    main()
