# What a team keeps in its repository: strict mode, a trap, a log line, the training, something after it.
set -e
trap 'echo "train.sh ends with $?"' EXIT
export LEARNING_RATE=0.05
echo "host $(hostname), rank $RANK of $WORLD_SIZE"
"$PYTHON" argparse_main.py --steps 8 --every 3
echo "exporting the model"
