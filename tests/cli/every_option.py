#!/usr/bin/env python3
"""Every option of train that a run stores survives OUT/config: read by --config, restored by --resume DIR, printed by
--print-config. An option that no command line below gives another value than its default fails the test."""
import os
import re
import subprocess
import sys
import tempfile

DESCENT = os.path.join(os.environ["DESCENT_BINARY_DIR"], "descent")
START = "--model mlp --data synthetic:100 --batch-size 16 --device cpu --threads 1 --epochs 2 --steps 2"

# Command lines that train. The second starts from the first.
TRAINED = [
    START + " --val-split 0.25 --bad-images stop --no-augment --mixup 0.2 --cutmix 0.3 --random-erasing 0.1 --seed 7"
    " --class-weights balanced --patience 3 --stop-at top1=99 --val-batch-size 20 --data-threads 2 --comm self"
    " --momentum 0.8 --nesterov --weight-decay 0.001 --decay-on weights --clip-norm 3 --label-smoothing 0.05 --ema 0.9"
    " --lr 0.02 --lr-scaling none --warmup-epochs 1 --warmup-start 0.001 --lr-decay 1,1.5 --lr-decay-rate 0.3"
    " --batches-per-allreduce 2 --allreduce-dtype bf16 --bucket-mb 2 --check-every 3 --checkpoint-every 1 --keep 3"
    " --eval-every 2 --log-every 2 --progress-every 3 --peer-timeout 9 --bn-average",
    START + " --init run0 --freeze fc1 --head-lr 2 --randaugment 5 --randaugment-ops 3 --optimizer adam --beta1 0.8"
    " --beta2 0.99 --eps 1e-07 --lr-schedule one-cycle --lr-rise 0.4 --lr-steps 100",
    START + " --optimizer lars --trust 0.002 --lr-schedule polynomial --lr-power 3 --lr-end 0.1",
    START + " --lr-schedule restarts --lr-period 1 --lr-period-factor 1.5 --kfac-update-freq 2 --kfac-cov-update-freq 2"
    " --kfac-damping 0.01 --kfac-stat-decay 0.9 --kfac-factor-samples 8 --kfac-kl-clip 0.002 --kfac-scaling kfac-pytorch"
    " --kfac-placement memory --kfac-colocate-factors off --kfac-symmetric off --kfac-skip-layers fc1"
    " --kfac-factor-dtype bf16 --kfac-inverse-dtype bf16 --kfac-bucket-mb 3 --kfac-fisher sampled --kfac-diag-warmup 1"
    " --kfac-damping-alpha 0.4 --kfac-damping-decay 1 --kfac-update-freq-alpha 3 --kfac-update-freq-decay 1",
    START + " --consensus osgp --graph ring --synch-freq 2 --average-every 4 --slow-momentum 0.3 --slow-rate 0.9"
    " --peers-schedule 0:1,1:1 --eval-ranks --distance-every 2 --kfac-update-freq 2 --kfac-scope local --kfac-skip-layers fc1"
    " --on-peer-loss continue",
]
# Command lines that need other machines or several ranks, or exclude what stands above.
PRINTED = [
    "--data imagefolder:x --image-size 64 --precision bf16 --device cuda --tune --comm nccl --tensorboard events",
    "--data webdataset:x.tar --shuffle-buffer 50 --consensus sgp --peers-per-step 2 --gossip-group 2",
    "--kfac-update-freq 2 --kfac-warmup-factors on --kfac-clip layer --kfac-kl-clip-scaling ranks --kfac-method inverse"
    " --kfac-damping-split pi --kfac-diag-blocks 2 --kfac-sharing reduce",
    "--model gpt-mini --data text:x --context 32 --recompute --kfac-update-freq 2 --kfac-embeddings on --kfac-tied-head input",
    "--model bert-base --data text:x --mask 0.15 --vocabulary 300 --mask-token 3",
    "--model unet-bn --data masks:x --loss bce-dice",
    "--model unet-bn --data masks:x --elastic 3",
    "--kfac-update-freq 10 --kfac-strategy hybrid-opt --kfac-grad-worker-fraction 0.25 --kfac-refresh warm --kfac-rank 0.5 --kfac-async 2 --kfac-outer-product on",
    "--kfac-update-freq 10 --kfac-ekfac batch --kfac-norm full --kfac-damping-adapt 5 --kfac-damping-min 1e-05"
    " --kfac-damping-max 5",
]

failures = []


def run(*args):
    done = subprocess.run([DESCENT, "train", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        failures.append(f"descent train {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def parse(text):
    """The options that apply, and the names of all."""
    values = dict(re.findall(r"^([a-z0-9-]+) = (.*)$", text, re.M))
    return values, set(re.findall(r"^(?:# )?([a-z0-9-]+)(?: =|:)", text, re.M))


def given(line):
    """The options of a command line."""
    options, words = {}, line.split()
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            options[name] = "on"
        else:
            options[name] = word.replace(",", " ")
    return options


def compare(what, line, expected, got, but=()):
    for name in sorted(set(expected) | set(got)):
        if name not in but and expected.get(name) != got.get(name):
            failures.append(f"{what}: {name} is {got.get(name)} instead of {expected.get(name)} ({line})")


def check_text(line, text, directory):
    """`text` is what --print-config printed; `directory` has it as its file `config`."""
    expected, _ = parse(text)
    stored = os.path.join(directory, "config")
    compare("--config", line, expected, parse(run("--config", stored, "--print-config"))[0], ("out",))
    compare("--resume DIR", line, expected, parse(run("--resume", directory, "--print-config"))[0], ("out",))
    compare("--print-config", line, given(line), {n: v for n, v in expected.items() if n in given(line)})


def main():
    printed = run("--print-config")
    usual = parse(re.sub(r"^# (\S+ = )", r"\1", printed, flags=re.M))[0]
    names = parse(printed)[1] - {"out"}
    changed = set()
    for number, line in enumerate(TRAINED + PRINTED):
        text = run(*line.split(), "--print-config")
        directory = f"run{number}"
        if number < len(TRAINED):
            run(*line.split(), "--out", directory)
        else:
            os.mkdir(directory)
            with open(os.path.join(directory, "config"), "w") as file:
                file.write(text)
        if failures:
            break
        with open(os.path.join(directory, "config")) as file:
            stored = file.read()
        compare("OUT/config", line, parse(text)[0], parse(stored)[0], ("out", "image-size", "kfac-refresh"))
        check_text(line, stored if number < len(TRAINED) else text, directory)
        changed |= {n for n, v in given(line).items() if usual.get(n) != v}
    for name in sorted(names - changed if not failures else ()):
        failures.append(f"no command line of this test changes --{name}: add it to one")
    print("\n".join(failures))
    return 1 if failures else 0


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    code = main()
    os.chdir("/")
sys.exit(code)
