"""Learning algorithms: PPO, GRPO, DPO, Double DQN, behaviour cloning."""
