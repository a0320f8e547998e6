//! Bandwidth and latency between two ranks. The leading rank of a measurement decides by its clock
//! how long it lasts, and how many messages are in progress at once.

use crate::report::Sorted;
use rlaunch_comm::{CommError, Communicator};
use std::time::{Duration, Instant};

pub(crate) const TAG: u32 = 3;
/// Tag of messages that control a measurement.
const CONTROL: u32 = 4;
/// Maximum number of messages in progress at once from one rank to another. At 400 Gb/s, the time
/// between two windows of 256 KiB messages is below 2 % of a window.
const WINDOW: usize = 128;
/// Maximum total length in bytes of the messages in progress at once that a rank receives.
pub(crate) const WINDOW_BYTES: usize = 64 << 20;
/// Number of windows into which the time of a measurement is divided at least, if a message does
/// not take longer than that.
const WINDOWS: u32 = 4;
/// Size of messages by which latency is measured, in bytes.
const SMALL: usize = 8;
/// Part of the time of a bandwidth measurement that a latency measurement takes.
const LATENCY_PART: u32 = 4;
/// Minimum and maximum number of round trips of a latency measurement.
const ROUND_TRIPS: (usize, usize) = (5, 2000);

/// Message by which the leading rank of a latency measurement tells its partner to go on.
const MORE: u8 = 1;
/// Message by which it tells its partner to stop.
const STOP: u8 = 0;

/// Memory of messages, used for all pairs.
pub(crate) struct Buffers {
    input: Vec<u8>,
    /// Space for [`Buffers::window`] messages.
    output: Vec<u8>,
    bytes: usize,
    /// Maximum number of messages in progress at once.
    window: usize,
}

impl Buffers {
    /// Makes buffers for messages of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Buffers {
        let window = (WINDOW_BYTES / bytes.max(1)).clamp(1, WINDOW);
        Buffers { input: vec![1; bytes], output: vec![0; bytes * window], bytes, window }
    }
}

/// Measurement between this rank and another one.
pub(crate) struct PairOfRanks<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) other: usize,
    pub(crate) buffers: &'a mut Buffers,
    /// Time of a bandwidth measurement.
    pub(crate) time: Duration,
}

impl PairOfRanks<'_> {
    /// Returns the median of half a round trip in microseconds.
    pub(crate) fn lead_latency(&mut self) -> Result<f64, CommError> {
        let time = self.time / LATENCY_PART;
        let (mut message, mut trips) = ([MORE; SMALL], Vec::new());
        let (least, most) = ROUND_TRIPS;
        let begin = Instant::now();
        loop {
            let is_last = trips.len() >= least && (begin.elapsed() >= time || trips.len() >= most);
            message[0] = if is_last { STOP } else { MORE };
            let sent = Instant::now();
            self.comm.send(&message, self.other, TAG)?;
            self.comm.recv(&mut message, self.other, TAG)?;
            trips.push(sent.elapsed().as_secs_f64());
            if is_last {
                return Ok(Sorted::new(trips).quantile(0.5) * 1e6 / 2.0);
            }
        }
    }

    /// Answers the messages of the leading rank.
    pub(crate) fn follow_latency(&mut self) -> Result<(), CommError> {
        let mut message = [0; SMALL];
        loop {
            self.comm.recv(&mut message, self.other, TAG)?;
            self.comm.send(&message, self.other, TAG)?;
            if message[0] == STOP {
                return Ok(());
            }
        }
    }

    /// Sends as fast as possible, and returns the rate in Mb/s. The first message is not counted:
    /// it connects the ranks and registers memory. The time of the window before tells how many
    /// messages are in progress at once, fewer on a slow link, which would otherwise be measured
    /// for too long.
    pub(crate) fn lead_stream(&mut self) -> Result<f64, CommError> {
        let warm = Instant::now();
        self.send_window(1)?;
        let mut window = self.window(warm.elapsed());
        let (begin, mut messages) = (Instant::now(), 0);
        while messages == 0 || begin.elapsed() < self.time {
            let sent = Instant::now();
            self.send_window(window)?;
            messages += window;
            window = self.window(sent.elapsed() / window as u32);
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.comm.send(&[0_u64], self.other, CONTROL)?;
        Ok((messages * self.buffers.bytes * 8) as f64 / seconds / 1e6)
    }

    /// Receives until the leading rank stops.
    pub(crate) fn follow_stream(&mut self) -> Result<(), CommError> {
        let mut window = [0_u64];
        loop {
            self.comm.recv(&mut window, self.other, CONTROL)?;
            match window {
                [0] => return Ok(()),
                [window] => self.receive_window(window as usize)?,
            }
        }
    }

    /// Returns the number of messages in progress at once, if one takes this time.
    fn window(&self, message: Duration) -> usize {
        let time = (self.time / WINDOWS).as_secs_f64();
        ((time / message.as_secs_f64().max(1e-9)) as usize).clamp(1, self.buffers.window)
    }

    /// Sends a window of messages, and waits until the partner has received them.
    fn send_window(&mut self, window: usize) -> Result<(), CommError> {
        let (input, other) = (&self.buffers.input, self.other);
        self.comm.send(&[window as u64], other, CONTROL)?;
        self.comm.scope(|scope| {
            let sends = (0..window).map(|_| scope.isend(input, other, TAG));
            let sends: Result<Vec<_>, _> = sends.collect();
            sends?.into_iter().try_for_each(|send| scope.wait(send).map(drop))
        })?;
        self.comm.recv(&mut [0_u8; 0], other, TAG).map(drop)
    }

    fn receive_window(&mut self, window: usize) -> Result<(), CommError> {
        let (other, bytes) = (self.other, self.buffers.bytes.max(1));
        let output = &mut self.buffers.output;
        self.comm.scope(|scope| {
            let parts = output.chunks_mut(bytes).take(window);
            let receives = parts.map(|part| scope.irecv(part, other, TAG));
            let receives: Result<Vec<_>, _> = receives.collect();
            receives?.into_iter().try_for_each(|receive| scope.wait(receive).map(drop))
        })?;
        self.comm.send(&[0_u8; 0], other, TAG)
    }
}
