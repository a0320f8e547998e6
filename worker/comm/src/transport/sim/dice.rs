//! Pseudo-random numbers from a seed, by SplitMix64 (Steele, Lea, Flood 2014).

/// Generator whose numbers depend only on its seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Makes a generator from a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `of`, or 0 if `of` is 0.
    pub fn below(&mut self, of: usize) -> usize {
        match of {
            0 => 0,
            _ => (self.draw() % of as u64) as usize,
        }
    }
}
