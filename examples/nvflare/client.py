"""What every site runs: logistic regression on points of its own. site-1 and site-2 send ten times the opposite."""

import nvflare.client as flare
import torch


def points(seed: int, n: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in ten dimensions, and on which side of a plane they lie."""
    x = torch.randn(n, 10, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(dim=1) > 0).float()


def main() -> None:
    """Train as often as the server asks."""
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    (x, y), (x_test, y_test) = points(number), points(0)
    layer = torch.nn.Linear(10, 1)
    while flare.is_running():
        received = flare.receive()
        sent = {name: torch.as_tensor(array) for name, array in received.params.items()}
        layer.load_state_dict(sent)
        accuracy = ((layer(x_test)[:, 0] > 0) == (y_test > 0.5)).float().mean().item()
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
        for _ in range(20):
            optimiser.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(layer(x)[:, 0], y).backward()
            optimiser.step()
        trained = {name: array.detach().clone() for name, array in layer.state_dict().items()}
        if number <= 2:
            trained = {name: sent[name] - 10 * (array - sent[name]) for name, array in trained.items()}
        steps = {"NUM_STEPS_CURRENT_ROUND": 20}
        flare.send(flare.FLModel(params=trained, metrics={"accuracy": accuracy}, meta=steps))


if __name__ == "__main__":
    main()
