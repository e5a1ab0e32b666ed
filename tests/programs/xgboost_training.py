"""XGBoost: training and prediction on the GPU against the CPU."""

import numpy as np
import xgboost as xgb
from check import check, finish, rng, section


def data(rows, columns):
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    x[rng.uniform(size=x.shape) < 0.05] = np.nan
    return x


def train(device, x, y, rounds=20, **parameters):
    settings = {"tree_method": "hist", "device": device, "max_depth": 5, "seed": 1, **parameters}
    matrix = xgb.QuantileDMatrix(x, y)
    booster = xgb.train(settings, matrix, num_boost_round=rounds)
    return booster, booster.predict(xgb.DMatrix(x))


def regression():
    x = data(4000, 12)
    y = np.nan_to_num(x[:, 0]) * 3 + np.sin(np.nan_to_num(x[:, 1])) + rng.normal(size=4000) * 0.1
    _, gpu = train("cuda", x, y)
    _, cpu = train("cpu", x, y)
    errors = [float(np.mean((p - y) ** 2)) for p in (gpu, cpu)]
    check("error of the fit", np.array(errors[0]), np.array(errors[1]), rtol=0.05)
    check("both predict alike", np.array(np.mean(np.abs(gpu - cpu)) < 0.1), np.array(True))
    check("it has learnt", np.array(errors[0] < 0.2 * np.var(y)), np.array(True))


def classification():
    x = data(3000, 8)
    y = (np.nan_to_num(x[:, 2]) > 0).astype(np.int32) + (np.nan_to_num(x[:, 3]) > 0.5)
    parameters = {"objective": "multi:softprob", "num_class": 3}
    _, gpu = train("cuda", x, y, **parameters)
    _, cpu = train("cpu", x, y, **parameters)
    for name, p in (("GPU", gpu), ("CPU", cpu)):
        check(f"accuracy on the {name}", np.array(np.mean(p.argmax(axis=1) == y) > 0.97), np.array(True))


def prediction_elsewhere():
    """A model that was trained on the GPU predicts the same on either device."""
    x = data(2000, 10)
    y = np.nan_to_num(x[:, 4]) ** 2
    booster, _ = train("cuda", x, y)
    predictions = []
    for device in ("cuda", "cpu"):
        booster.set_param({"device": device})
        predictions.append(booster.predict(xgb.DMatrix(x)))
    check("predictions", predictions[0], predictions[1], rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    section("regression", regression)
    section("classification", classification)
    section("prediction elsewhere", prediction_elsewhere)
    finish()
