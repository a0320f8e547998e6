from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
total = world.allreduce(rank)
print(f"rank {rank} of {size} on {MPI.Get_processor_name()}, sum {total}")
