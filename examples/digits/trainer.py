"""The same training through TorchTrainer, as one would call it from a notebook or a larger program.

python examples/digits/trainer.py
"""

from train import train

from trainjob import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchTrainer


def main():
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": 10, "batch_size": 16, "lr": 1e-3, "seed": 7},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=3),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
    )
    result = trainer.fit()
    print(f"accuracy {result.metrics['accuracy']:.4f}")
    best = result.get_best_checkpoint("accuracy", "max")
    print(f"best checkpoint: {best.path} with accuracy {best.metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
