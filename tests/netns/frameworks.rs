//! Frameworks as their pages and `rlaunch help frameworks` have them: torch and JAX themselves, the others by stand-ins
//! that take their options. `cargo lab soak frameworks` runs more, with the frameworks themselves.

use crate::example::make_launcher;
use crate::support::{Field, PATH, launch_directory};

use rlaunch_lab::{Account, python};
use std::path::Path;

const HOSTS: [&str; 3] = ["a", "b", "c"];
const PAGE: &str = include_str!("../../launcher/help/frameworks.md");

const TORCH: &str = include_str!("frameworks/ddp.py");
const JAX: &str = include_str!("frameworks/add_up.py");
/// Program that reads TF_CONFIG as TensorFlow does.
const TENSORFLOW: &str = r#"import json, os
config = json.loads(os.environ["TF_CONFIG"])
workers, index = config["cluster"]["worker"], config["task"]["index"]
assert config["task"]["type"] == "worker" and workers[index].count(":") == 1, config
print(f"worker {index} of {len(workers)}")
"#;

/// Lines of a section of the page, each as one line.
fn lines_of(section: &str) -> Vec<String> {
    let (_, text) = PAGE.split_once(&format!("\n## {section}\n")).unwrap();
    let text = text.split("\n## ").next().unwrap().replace("\\\n", "");
    let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Runs the lines of a section that begin with `rlaunch`, where `files` are the files of the job on all hosts and
/// programs of `path` are found first. Each prints what is said of it here, as often as said, and none is without.
fn run_section(section: &str, path: &str, files: &[(&str, &str)], wanted: &[(&str, usize)]) {
    let field = Field::new();
    let directory = launch_directory();
    let here = directory.path().to_str().unwrap();
    let _files = field.scratch(&HOSTS, here);
    for host in HOSTS {
        for (name, text) in files {
            let (path, mode) =
                (directory.path().join(name), if name.ends_with(".py") { 0o644 } else { 0o755 });
            field.lab.write_file(host, &path, text.as_bytes(), mode).unwrap();
        }
    }
    field.warm("a,b,c", Account::Root);
    let lines: Vec<String> =
        lines_of(section).into_iter().filter(|line| line.starts_with("rlaunch ")).collect();
    assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
    let (rlaunch, path) = (field.rlaunch.display(), path.replace("HERE", here));
    for (line, (text, count)) in lines.iter().zip(wanted) {
        let script = format!(
            "rlaunch() {{ {rlaunch} \"$@\"; }}\nexport PATH={path}:$PATH STAND_IN_ENDS=1\n\
             {{ {line}\n}} 2>&1; echo \"ended with $?\""
        );
        let said = field.shell(&script, directory.path());
        let found = said.lines().filter(|line| line.contains(text)).count();
        assert!(found == *count && said.ends_with("ended with 0\n"), "{line}\n{said}");
    }
}

#[test]
fn torch_starts_as_the_page_says() {
    let files = [("train.py", TORCH), ("pkg/__init__.py", ""), ("pkg/train.py", TORCH)];
    let wanted = [("sum 10 of 4", 4), ("sum 10 of 4", 4), ("sum 3 of 2", 2), ("sum 10 of 4", 4)];
    let path = Path::new(python::PROGRAM).parent().unwrap();
    run_section("torch", path.to_str().unwrap(), &files, &wanted);
}

#[test]
fn jax_starts_as_the_page_says() {
    let wanted = [("sum 3 of 2", 2), ("sum 3 of 2", 2)];
    let path = Path::new(python::JAX).parent().unwrap();
    run_section("JAX", path.to_str().unwrap(), &[("train.py", JAX)], &wanted);
}

#[test]
fn tensorflow_is_told_as_the_page_says() {
    run_section("TensorFlow", "HERE", &[("train.py", TENSORFLOW)], &[("worker ", 2)]);
}

#[test]
fn a_stand_in_of_ray_runs_its_driver_as_the_page_says() {
    let files =
        [("ray", include_str!("frameworks/ray_stand_in.py")), ("driver.py", "print('driven')\n")];
    run_section("Ray", "HERE", &files, &[("driven", 1)]);
}

#[test]
fn stand_ins_of_vllm_and_sglang_meet_as_the_page_says() {
    let files = [
        ("vllm", include_str!("frameworks/vllm_stand_in.py")),
        ("sglang/launch_server.py", include_str!("frameworks/sglang_stand_in.py")),
    ];
    let wanted = ["serving org/model on 2 nodes, tensor parallel 2"; 2].map(|text| (text, 1));
    run_section("vLLM", "HERE", &files, &wanted);
}

/// Runs a line of the page on host a, where `mpirun` is a link to rlaunch.
fn by_mpirun(line: &str, train: &str) {
    let field = Field::new();
    let _copy = field.scratch(&["a"], "/tmp/dist");
    let _work = field.scratch(&HOSTS, "/tmp/train");
    let _launcher = make_launcher(&field, "a", Account::Root);
    for host in ["a", "b"] {
        field
            .lab
            .write_file(host, Path::new("/tmp/train/train.py"), train.as_bytes(), 0o644)
            .unwrap();
    }
    field
        .lab
        .write_file("a", Path::new("/tmp/train/hosts"), b"a slots=2\nb slots=2\n", 0o644)
        .unwrap();
    let starters = Path::new(python::STARTERS).parent().unwrap().display();
    let line = lines_of("torch").into_iter().find(|known| known.starts_with(line)).unwrap();
    let script = format!(
        "ln -s rlaunch /tmp/dist/mpirun && cd /tmp/train && export PATH=/tmp/dist:{starters}:{PATH}\n\
         {line} 2>&1; echo \"ended with $?\""
    );
    let said = field.on("a", &script);
    let right = said.matches("sum 10 of 4").count() == 4 && said.ends_with("ended with 0\n");
    assert!(right, "{line}\n{said}");
}

#[test]
fn torch_starters_accelerate_finds_rlaunch_by_the_name_mpirun() {
    by_mpirun("accelerate launch ", include_str!("frameworks/gathered.py"));
}

#[test]
fn torch_starters_deepspeed_finds_rlaunch_by_the_name_mpirun() {
    by_mpirun("deepspeed ", include_str!("frameworks/deep.py"));
}
