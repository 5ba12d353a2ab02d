"""Writes a dump for `rlrun conform` from the training data that slime saves (docs/conform.md):

    python train.py … --save-debug-train-data 'train-{rollout_id}.pt'
    python slime_dump.py train-0.pt dump.npz --samples-per-prompt 8

slime saves tokens, masks, log-probs, rewards and advantages, but neither ratios nor the loss, so masks and
advantages are compared. It needs torch and numpy, neither slime nor rlrun. Written for format_version 2.
"""

import argparse
import json

import numpy as np
import torch


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Writes a dump for rlrun conform from slime's training data."
    )
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument(
        "--samples-per-prompt", type=int, required=True, help="slime's --n-samples-per-prompt"
    )
    parser.add_argument("--algorithm", default="grpo", help="Type of the algorithm (rlrun plugins list).")
    parser.add_argument("--no-std", action="store_true", help="slime's --disable-grpo-std-normalization")
    parser.add_argument("--end-token-id", type=int, action="append", default=[], help="Checks the masks.")
    args = parser.parse_args()
    saved = torch.load(args.source, weights_only=True)
    if saved.get("format_version") != 2:
        raise SystemExit(f"{args.source} has format_version {saved.get('format_version')}, not 2")
    samples = saved["samples"]
    rewards = saved["raw_reward"]
    if not len(rewards) == len(samples) or len(samples) % args.samples_per_prompt:
        raise SystemExit(
            f"{args.source} has {len(samples)} samples and {len(rewards)} rewards, which are not "
            f"groups of {args.samples_per_prompt}"
        )
    lengths = [int(sample["response_lengths"]) for sample in samples]
    arrays = {
        "tokens": padded([row["tokens"][-length:] for row, length in zip(samples, lengths, strict=True)]),
        "mask": padded([sample["loss_masks"] for sample in samples]),
        "log_probs": padded([sample.get("log_probs", sample.get("rollout_log_probs")) for sample in samples]),
        "advantages": padded([sample["advantages"] for sample in samples]),
    }
    arrays["tokens"] = arrays["tokens"].astype(np.int64)
    algorithm = {"type": args.algorithm, **({"normalize_std": False} if args.no_std else {})}
    batch = {"source": f"slime, rollout {saved['rollout_id']}", "end_token_ids": args.end_token_id}
    np.savez_compressed(
        args.target,
        settings=json.dumps({"algorithm": algorithm, "batch": batch}),
        rewards=np.array(rewards, np.float64),
        groups=np.arange(len(samples)) // args.samples_per_prompt,
        **arrays,
    )


def padded(rows):
    """Returns rows of different lengths as one array, padded on the right with 0."""
    arrays = [torch.as_tensor(row).float().numpy() for row in rows]
    width = max(map(len, arrays))
    return np.stack([np.pad(row, (0, width - len(row))) for row in arrays])


if __name__ == "__main__":
    main()
