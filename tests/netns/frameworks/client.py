# Workers of Dask square numbers. client.py [SCHEDULER WORKERS]; without arguments dask-mpi has made the workers.
import sys
from distributed import Client


def main():
    if len(sys.argv) == 1:
        from dask_mpi import initialize

        initialize(nthreads=1)
        client = Client()
    else:
        client = Client(sys.argv[1])
        client.wait_for_workers(int(sys.argv[2]))
    total = sum(client.gather(client.map(lambda number: number * number, range(10))))
    workers = {worker["host"] for worker in client.scheduler_info()["workers"].values()}
    print(f"squares {total} on {len(workers)} hosts", flush=True)
    client.close()


if __name__ == "__main__":
    main()
