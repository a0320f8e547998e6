//! Answers that are too large for a frame: the outermost frames and the last threads are left out.

use rlaunch_bootstrap::frame::{self, FrameError, MAX_FRAME};
use rlaunch_bootstrap::protocol::inspection::RankStacks;

/// Maximum size of an answer in bytes, which leaves room for what agent and launcher add.
const MAX_ANSWER: usize = MAX_FRAME / 2;

/// Numbers of frames of a thread and of threads of a process that are kept, tried one after another.
const KEPT: [(usize, usize); 5] = [(48, 64), (24, 32), (12, 16), (6, 4), (2, 1)];

/// Encodes an answer as a frame.
pub(crate) fn encode(mut answer: Vec<RankStacks>) -> Result<Vec<u8>, FrameError> {
    let mut kept = KEPT.iter();
    loop {
        match (frame::encode(&answer), kept.next()) {
            (Ok(encoded), _) if encoded.len() <= MAX_ANSWER => return Ok(encoded),
            (Ok(_) | Err(FrameError::TooLong(_)), Some(&(frames, threads))) => {
                shorten(&mut answer, frames, threads);
            }
            (encoded, _) => return encoded,
        }
    }
}

/// Leaves out what exceeds these numbers, and says so at each process that has lost something.
fn shorten(answer: &mut [RankStacks], frames: usize, threads: usize) {
    for process in answer.iter_mut().flat_map(|rank| &mut rank.processes) {
        let is_long = process.threads.iter().any(|thread| thread.frames.len() > frames);
        if is_long || process.threads.len() > threads {
            let what = "frames and threads are left out, since there is too much to send";
            process.problem.get_or_insert_with(|| what.to_owned());
        }
        process.threads.truncate(threads);
        process.threads.iter_mut().for_each(|thread| thread.frames.truncate(frames));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::frame::FrameReader;
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::protocol::inspection::{ProcessStacks, ThreadStack};

    fn answer(ranks: u32, frames: usize) -> Vec<RankStacks> {
        let mut thread = ThreadStack { state: 'S', ..ThreadStack::default() };
        thread.frames.resize_with(frames, Default::default);
        thread.frames.iter_mut().for_each(|frame| frame.function = "f".repeat(60));
        let threads = vec![thread; 100];
        let process = ProcessStacks { threads, ..ProcessStacks::default() };
        let rank = |rank| RankStacks { rank: Rank(rank), processes: vec![process.clone(); 4] };
        (0..ranks).map(rank).collect()
    }

    fn decoded(encoded: &[u8]) -> Vec<RankStacks> {
        let mut frames = FrameReader::default();
        frames.push(encoded);
        frames.next_frame().unwrap().unwrap()
    }

    #[test]
    fn a_small_answer_is_whole() {
        let small = answer(1, 10);
        assert_eq!(decoded(&encode(small.clone()).unwrap()), small);
    }

    #[test]
    fn a_large_answer_loses_its_outermost_frames() {
        let large = answer(64, 100);
        assert!(matches!(frame::encode(&large), Err(FrameError::TooLong(_))));
        let encoded = encode(large).unwrap();
        assert!(encoded.len() <= MAX_ANSWER);
        let shortened = decoded(&encoded);
        assert_eq!(shortened.len(), 64);
        let process = &shortened[63].processes[3];
        assert!(!process.threads[0].frames.is_empty());
        assert!(process.problem.as_ref().unwrap().contains("left out"), "{process:?}");
    }
}
