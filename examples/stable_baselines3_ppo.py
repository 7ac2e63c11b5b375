"""Signals in somebody else's trainer: Stable-Baselines3's PPO on a wrapped environment.

    pip install stable-baselines3
    python examples/stable_baselines3_ppo.py --calibrate              # the model that ships in the package
    python examples/stable_baselines3_ppo.py --scorer clip --prompts metadrive-v2
    python examples/stable_baselines3_ppo.py --scorer oracle          # without a model

The wrapper adds the bonus to the reward; the callback keeps the environment's own return apart from it.
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

import vlmsafe


class Returns(BaseCallback):
    """Environment return and bonus of every finished episode."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "signal_episode" in info:
                self.episodes.append(info["signal_episode"])
                self.logger.record_mean("signals/env_return", info["signal_episode"]["env_return"])
                self.logger.record_mean("signals/bonus", info["signal_episode"]["bonus"])
        return True


def main(arguments: list[str] | None = None) -> Returns:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scorer", default="embedded")
    parser.add_argument("--prompts", default="metadrive-v2")
    parser.add_argument("--env", default="braking", help="any environment of vlmsafe; your own Gymnasium one works too")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--calibrate", action="store_true", help="calibrate the gate on a random policy's frames first")
    options = parser.parse_args(arguments)

    env = vlmsafe.SemanticSignals(vlmsafe.make_env(options.env), options.scorer, options.prompts, every=4)
    if options.calibrate:
        print(env.calibrate())
    returns = Returns()
    PPO("MlpPolicy", env, n_steps=1024, seed=0, verbose=0, device="cpu").learn(options.steps, callback=returns)
    last = returns.episodes[-20:]
    print(f"{len(returns.episodes)} episodes; the last {len(last)}:", end=" ")
    for name in ("env_return", "bonus", "negative_score", "kappa"):
        print(f"{name} {sum(episode[name] for episode in last) / len(last):.3f}", end="  ")
    print()
    return returns


if __name__ == "__main__":
    main()
