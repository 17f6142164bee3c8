"""A worker of the training workloads of recommenders by TorchRec, on CPUs over Gloo.

It follows TorchRec's documentation: the tables are an EmbeddingBagCollection, made without memory.
DistributedModelParallel shards it by the plan of the EmbeddingShardingPlanner, and wraps the layers in
DistributedDataParallel. The backward pass of FBGEMM updates the tables. TorchRec divides the gradients of tables by the
number of workers, as DistributedDataParallel does.

Differences from jobs on GPUs:

- For CPUs, TorchRec offers the planner no row-wise sharding. A table is on one worker, or data parallel if it is small;
  the optimizer of the layers updates the tables that are data parallel, because they have no fused kernel.
- FBGEMM's adagrad begins at 0 and adds its epsilon after the root. All contenders begin at MXNet's epsilon instead.
- TrainPipelineSparseDist, which sends the keys of the next batch early, is not used: no contender does so here.

FBGEMM's libraries fit one version of PyTorch. These fit: torch 2.13.0, torchrec 1.8.0, fbgemm-gpu-cpu 1.8.0.
"""
from typing import Any, Tuple

import torch
import torch.distributed as dist
from torch import nn

# TorchRec's own function of this name is deprecated in favour of this one.
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from .model_steps import Task, initial
from .model_torch import EPSILON, Dlrm, TorchTrained, set_first_values


class _Recommender(nn.Module):
    """DLRM with a bag of one key for each table."""

    def __init__(self, task: Task):
        super().__init__()
        self.features = ['feature%d' % number for number, _, _ in task.tables]
        self.tables = EmbeddingBagCollection(device=torch.device('meta'), tables=[
            EmbeddingBagConfig(name='table%d' % number, num_embeddings=rows, embedding_dim=width,
                               feature_names=[self.features[number]]) for number, rows, width in task.tables])
        self.layers = Dlrm(task)

    def forward(self, keys: KeyedJaggedTensor, numbers: Any, clicks: Any) -> Any:
        rows = self.tables(keys).to_dict()
        return self.layers([rows[feature] for feature in self.features], numbers, keys, clicks)


class TorchRecTrained(TorchTrained):
    """A worker of `train_dlrm` or `train_movielens`."""

    def _make(self, task: Task) -> None:
        rate = dict(task.settings)['learning_rate']
        net = _Recommender(task)
        set_first_values(net.layers, task)
        self._features = net.features
        self._lengths = torch.ones(len(task.tables) * task.samples, dtype=torch.int32)
        apply_optimizer_in_backward(torch.optim.Adagrad, net.tables.parameters(), {'lr': rate, 'eps': 0.0})
        planner = EmbeddingShardingPlanner(
            Topology(self._size, compute_device='cpu', local_world_size=self._spec['workers']),
            batch_size=task.samples)
        plan = planner.collective_plan(net, get_default_sharders(), dist.GroupMember.WORLD)
        self._net = DistributedModelParallel(net, device=torch.device('cpu'), plan=plan)
        self._net.load_state_dict(dict(self._net.state_dict(), **{
            'tables.embedding_bags.table%d.weight' % number: torch.from_numpy(initial(number, (rows, width)))
            for number, rows, width in task.tables}))
        fused = self._net.fused_optimizer
        for states in fused.state_dict()['state'].values():
            for state in states.values():
                for shard in state.local_shards():
                    shard.tensor.fill_(EPSILON)
        others = KeyedOptimizerWrapper(
            dict(in_backward_optimizer_filter(self._net.named_parameters())),
            lambda params: torch.optim.Adagrad(params, rate, initial_accumulator_value=EPSILON, eps=0))
        self._optimizer = CombinedOptimizer([fused, others])

    def _train(self, arrays: Tuple[Any, ...]) -> Any:
        numbers, keys, clicks = map(torch.from_numpy, arrays)
        jagged = KeyedJaggedTensor(self._features, keys.t().reshape(-1), lengths=self._lengths)
        self._optimizer.zero_grad()
        loss = self._net(jagged, numbers, clicks).mean()
        loss.backward()
        self._optimizer.step()
        return loss
