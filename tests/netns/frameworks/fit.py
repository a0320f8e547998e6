# Lightning's Trainer on CPUs. fit.py NODES DEVICES
import os
import sys
import warnings
import torch
import lightning

warnings.filterwarnings("ignore")


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).pow(2).mean()

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        mine = torch.tensor([self.global_rank + 1.0])
        total = self.trainer.strategy.reduce(mine, reduce_op="sum")
        environment = type(self.trainer.strategy.cluster_environment).__name__
        # By one write: torchrun's processes share their stream, and run with -u, where print writes a newline on its own.
        sys.stdout.write(f"sum {int(total)} of {self.trainer.world_size} on {os.uname().nodename} by {environment}\n")


if __name__ == "__main__":
    nodes, devices = map(int, sys.argv[1:3])
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", num_nodes=nodes, devices=devices, max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Net())
