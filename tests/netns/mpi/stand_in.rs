//! Programs in C that are compiled on a host with a library of the Python package index: stand-ins
//! for programs that make the same calls of MPI and do not build here, and the example of the
//! guide.

use crate::support::Field;
use std::fs;
use std::path::Path;

/// Program to compile.
pub(crate) struct StandIn<'a> {
    /// Source in C.
    pub(crate) source: &'a str,
    /// Name of the MPI library, see [`rlaunch_lab::mpi::NAMES`].
    pub(crate) library: &'a str,
    /// Further options of the compiler.
    pub(crate) options: &'a str,
}

impl StandIn<'_> {
    /// Compiles the program on the first of `hosts`, and copies it to the others. `path` is that of
    /// the program on each of them; its directory is made.
    pub(crate) fn compile(&self, field: &Field, hosts: &[&str], path: &str) {
        let StandIn { source, library, options } = self;
        let (first, others) = hosts.split_first().unwrap();
        let file = format!("{path}.c");
        field.lab.write_file(first, Path::new(&file), source.as_bytes(), 0o644).unwrap();
        // Intel MPI comes without headers. Those of MPICH are for the same binary interface.
        let headers = if *library == "intel" { "mpich" } else { library };
        let of = |name, folder| format!("/run/rlaunch-mpi/{name}/{folder}");
        let (include, lib) = (of(headers, "include"), of(library, "lib"));
        let compile = format!(
            "cc -O1 -Wall -Werror {options} -I{include} -o {path} {file} -L{lib} -lmpi -Wl,-rpath,{lib}"
        );
        field.on(first, &compile);
        let compiled = fs::read(field.lab.path(first, Path::new(path)).unwrap()).unwrap();
        for host in others {
            field.lab.write_file(host, Path::new(path), &compiled, 0o755).unwrap();
        }
    }
}
