//! Replays every seed, variants of it, and the corpus.

use rlaunch_fuzz::TARGETS;
use std::fs;
use std::path::Path;

#[test]
fn every_seed_and_every_find_is_handled() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seed", target.name);
        for seed in seeds {
            assert!(!seed.is_empty(), "{} has an empty seed", target.name);
            (target.run)(&seed);
            // Half a message, and one with a bit flipped at every position.
            (target.run)(&seed[..seed.len() / 2]);
            for at in 0..seed.len().min(200) {
                let mut changed = seed.clone();
                changed[at] ^= 1 << (at % 8);
                (target.run)(&changed);
            }
        }
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        for file in fs::read_dir(corpus).into_iter().flatten() {
            (target.run)(&fs::read(file.unwrap().path()).unwrap());
        }
    }
}
