//! An alpha-beta filter: a position and a velocity, estimated from positions at numbered frames.

/// How much of the distance between a measured and an expected position corrects the position.
const ALPHA: f64 = 0.8;
/// How much of it corrects the velocity.
const BETA: f64 = 0.6;

/// A track, in pixels and pixels a frame.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Track {
    pub sequence: u64,
    pub x: f64,
    pub y: f64,
    pub vx: f64,
    pub vy: f64,
}

impl Track {
    /// Returns a track that stands still.
    pub fn new(sequence: u64, x: f64, y: f64) -> Track {
        Track { sequence, x, y, vx: 0.0, vy: 0.0 }
    }

    /// Returns the position that is expected in another frame.
    pub fn at(&self, sequence: u64) -> (f64, f64) {
        let frames = sequence as f64 - self.sequence as f64;
        (self.x + self.vx * frames, self.y + self.vy * frames)
    }

    /// Takes in a position of a later frame. One of an earlier frame, or of the same, is of another camera and starts anew.
    pub fn update(&mut self, sequence: u64, x: f64, y: f64) {
        if sequence <= self.sequence {
            *self = Track::new(sequence, x, y);
            return;
        }
        let frames = (sequence - self.sequence) as f64;
        let (expected_x, expected_y) = self.at(sequence);
        let (off_x, off_y) = (x - expected_x, y - expected_y);
        *self = Track {
            sequence,
            x: expected_x + ALPHA * off_x,
            y: expected_y + ALPHA * off_y,
            vx: self.vx + BETA * off_x / frames,
            vy: self.vy + BETA * off_y / frames,
        };
    }
}
