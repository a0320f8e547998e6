# Prints what a rank finds on its host, in lines `RANK SUBJECT TEXT`.
say() { echo "$RANK $*"; }
PATH=$PATH:/sbin:/usr/sbin
if ! command -v python3 >/dev/null; then
    say python-none
else
    version=$(python3 -c 'import platform; print(platform.python_version())' 2>&1) || version=python3
    if why=$(python3 -c 'import rlaunch' 2>&1); then
        say python "$version"
    else
        say python-failed "$version: $(echo "$why" | tail -n 1)"
    fi
fi
case $(ldconfig -p 2>/dev/null) in *libmpi.so.40*) say mpi Open MPI ;; esac
case $(ldconfig -p 2>/dev/null) in *libmpich.so.12*) say mpi MPICH ;; esac
