"""The settings of race: eight of first order and eight of K-FAC in every group, chosen before the runs."""

COSINE = "--lr-schedule cosine --val-batch-size 1000 --log-every 50 "
NESTEROV = "--optimizer sgd --nesterov "
LARS = "--optimizer lars "
ADAMW = "--optimizer adamw --weight-decay 0.05 "
KFAC = NESTEROV + "--kfac-refresh warm "
WARM = " --warmup-start 0 --warmup-epochs "  # from 0: with one rank a warm-up begins at the rate itself otherwise
DEVICES = {"cuda": "--device cuda --tune", "cpu": "--device cpu"}


def rates(prefix, name, values):
    return {"%s-%s" % (name, value): prefix + "--lr %s" % value for value in values}


def kfac(batch, factors, refresh, damping, clip, rate):
    """F, T, damping, KL clip, rate."""
    name = "F%d-T%d-d%s-c%s-lr%s" % (factors, refresh, damping, clip, rate)
    options = "--batch-size %d --kfac-cov-update-freq %d --kfac-update-freq %d --kfac-damping %s --kfac-kl-clip %s --lr %s"
    return name, KFAC + options % (batch, factors, refresh, damping, clip, rate)


def first(batch, settings):
    return {name: "--batch-size %d %s" % (batch, options) for name, options in settings.items()}


def warm(epochs, settings):
    return {"%s-w%d" % (name, epochs): options + WARM + str(epochs) for name, options in settings.items()}


CIFAR = {
    "128": {
        "first order": first(128, {**rates(NESTEROV, "nesterov", [0.05, 0.1, 0.2, 0.4]), **rates(LARS, "lars", [1, 2]),
                                   **rates(ADAMW, "adamw", [0.001, 0.003])}),
        "K-FAC": dict([
            kfac(128, 10, 100, 0.03, 0.001, 0.1), kfac(128, 10, 100, 0.03, 0.001, 0.2), kfac(128, 10, 100, 0.3, 0, 0.1),
            kfac(128, 10, 50, 0.03, 0.003, 0.1), kfac(128, 10, 20, 0.03, 0.001, 0.2), kfac(128, 5, 50, 0.1, 0.003, 0.2),
            kfac(128, 10, 100, 0.1, 0.003, 0.1), kfac(128, 10, 100, 0.03, 0.003, 0.2)]),
    },
    "1024": {
        "first order": {**first(1024, rates(NESTEROV + "--clip-norm 1 ", "nesterov-clip", [1.6])),
                        **warm(5, first(1024, {**rates(NESTEROV, "nesterov", [0.4, 0.8, 1.6]), **rates(LARS, "lars", [8, 16]),
                                               **rates(ADAMW, "adamw", [0.003, 0.01])}))},
        "K-FAC": dict([
            kfac(1024, 5, 20, 0.003, 0.01, 0.4), kfac(1024, 5, 20, 0.003, 0.01, 0.8), kfac(1024, 5, 10, 0.003, 0.01, 0.4),
            kfac(1024, 5, 20, 0.003, 0.03, 0.4), kfac(1024, 5, 20, 0.01, 0.01, 0.4), kfac(1024, 2, 10, 0.003, 0.01, 0.4),
            kfac(1024, 5, 20, 0.01, 0.03, 0.8), kfac(1024, 10, 20, 0.003, 0.01, 0.4)]),
    },
    "4096": {
        "first order": {**first(4096, {**rates(LARS, "lars", [24, 32]), **rates(NESTEROV + "--clip-norm 1 ", "nesterov-clip", [0.8])}),
                        **warm(5, first(4096, {**rates(LARS, "lars", [32, 48]), **rates(ADAMW, "adamw", [0.01, 0.02]),
                                               **rates(NESTEROV + "--clip-norm 1 ", "nesterov-clip", [1.6])}))},
        "K-FAC": warm(6, dict([kfac(4096, *values) for values in [
            (2, 10, 0.003, 0.03, 0.8), (2, 5, 0.003, 0.03, 0.8), (2, 10, 0.003, 0.1, 0.8), (2, 10, 0.01, 0.03, 0.8),
            (2, 10, 0.003, 0.03, 1.6), (2, 4, 0.003, 0.1, 1.6), (4, 8, 0.003, 0.03, 0.8), (2, 10, 0.01, 0.1, 1.6)]])),
    },
}


def for_epochs(settings):
    """Settings [(name, options, epochs), ...] as {name: options}, with the number of epochs in both."""
    return {"%s-e%d" % (name, epochs): "%s --epochs %d" % (options, epochs) for name, options, epochs in settings}


MARK = {
    "any": {
        "first order": for_epochs(
            [("nesterov-128-0.2", "--batch-size 128 " + NESTEROV + "--lr 0.2", epochs) for epochs in (55, 65, 75)]
            + [("nesterov-128-0.1", "--batch-size 128 " + NESTEROV + "--lr 0.1", 65)]
            + [("nesterov-512-0.8-w5", "--batch-size 512 " + NESTEROV + "--lr 0.8" + WARM + "5", epochs) for epochs in (55, 70)]
            + [("nesterov-1024-0.8-w5", "--batch-size 1024 " + NESTEROV + "--lr 0.8" + WARM + "5", 80)]
            + [("lars-1024-16-w5", "--batch-size 1024 " + LARS + "--lr 16" + WARM + "5", 80)]),
        "K-FAC": for_epochs(
            [(*kfac(512, 5, 20, 0.003, 0.003, 0.4), epochs) for epochs in (45, 50, 55)]
            + [(*kfac(512, 10, 50, 0.003, 0.003, 0.4), epochs) for epochs in (45, 50)]
            + [(*kfac(256, 10, 50, 0.003, 0.001, 0.2), epochs) for epochs in (40, 50)]
            + [(*kfac(1024, 5, 20, 0.003, 0.003, 0.4), 60)]),
    }
}

FASHION = {
    "2048": {
        "first order": first(2048, {**rates(NESTEROV, "nesterov", [0.05, 0.1, 0.2, 0.4]), **rates(LARS, "lars", [4, 8]),
                                    **rates(ADAMW, "adamw", [0.003, 0.01])}),
        "K-FAC": dict([
            kfac(2048, 5, 10, 0.003, 0.01, 0.1), kfac(2048, 5, 10, 0.03, 0.01, 0.1), kfac(2048, 5, 10, 0.003, 0.1, 0.1),
            kfac(2048, 5, 10, 0.03, 0.1, 0.1), kfac(2048, 5, 10, 0.03, 0.1, 0.2), kfac(2048, 2, 10, 0.03, 0.03, 0.1),
            kfac(2048, 5, 10, 0.003, 0.03, 0.2), kfac(2048, 10, 30, 0.03, 0.03, 0.1)]),
    }
}

RACES = {
    "cifar10": {"data": "cifar10", "common": COSINE + "--model resnet32 --epochs 20", "groups": CIFAR, "devices": DEVICES},
    "mark": {"data": "cifar10", "common": COSINE + "--model resnet32 --stop-at top1=92.49", "groups": MARK, "devices": DEVICES,
             "mark": 92.49},
    "fashion": {"data": "mnist", "common": COSINE + "--model lenet --epochs 5 --no-augment" + WARM + "1",
                "groups": FASHION, "devices": DEVICES},
}
