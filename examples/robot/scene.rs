//! What the camera sees: a bright disc that runs along an ellipse on a dark ground.
//!
//! A frame is a `UINT8 [height, width, 3]`, row-major. The centre of the disc is a function of the number of the frame, so
//! everybody can tell whether a position is right.

use std::f64::consts::TAU;

/// The value of each byte of the ground.
const GROUND: u8 = 16;
/// The value of each byte of the disc.
const BRIGHT: u8 = 240;
/// What is brighter belongs to the disc.
const THRESHOLD: u8 = 128;
/// Frames in which the disc runs once around the ellipse: 4 s at 60 a second.
const ROUND: u64 = 240;
/// Bytes of a pixel.
const CHANNELS: usize = 3;

/// The size of a frame in pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scene {
    pub height: usize,
    pub width: usize,
}

/// A disc that was found: its centre and its area, in pixels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Blob {
    pub x: f64,
    pub y: f64,
    pub area: u32,
}

impl Scene {
    /// Returns the centre of the disc in the frame with this number.
    pub fn position(self, sequence: u64) -> (f64, f64) {
        let angle = TAU * (sequence % ROUND) as f64 / ROUND as f64;
        let (height, width) = (self.height as f64, self.width as f64);
        (width * (0.5 + 0.35 * angle.cos()), height * (0.5 + 0.35 * angle.sin()))
    }

    fn radius(self) -> usize {
        (self.height.min(self.width) / 40).max(4)
    }

    /// Draws the frame with this number: every byte of it.
    pub fn draw(self, frame: &mut [u8], sequence: u64) {
        frame.fill(GROUND);
        let (x, y) = self.position(sequence);
        let radius = self.radius() as f64;
        for row in (y - radius).ceil() as usize..=(y + radius) as usize {
            let half = (radius.powi(2) - (row as f64 - y).powi(2)).max(0.0).sqrt();
            let columns = (x - half).ceil() as usize..(x + half) as usize + 1;
            let start = row * self.width * CHANNELS;
            frame[start + columns.start * CHANNELS..start + columns.end * CHANNELS].fill(BRIGHT);
        }
    }

    /// Finds the disc. `read` copies the bytes of a frame from an offset on: some rows on a coarse grid, and then those
    /// around what was found there.
    pub fn find(self, mut read: impl FnMut(usize, &mut [u8])) -> Option<Blob> {
        let radius = self.radius();
        let step = radius / 2;
        let (rows, columns) = ((0..self.height).step_by(step), (0, self.width, step));
        let coarse = self.centre(rows, columns, &mut read)?;
        let reach = radius + 2 * step;
        let around = |centre: f64, end: usize| {
            let centre = centre as usize;
            centre.saturating_sub(reach)..(centre + reach + 1).min(end)
        };
        let columns = around(coarse.x, self.width);
        let columns = (columns.start, columns.end, 1);
        self.centre(around(coarse.y, self.height), columns, &mut read)
    }

    /// Returns the mean of the bright pixels in these rows and in the columns `from..to` by `step`.
    fn centre(
        self,
        rows: impl Iterator<Item = usize>,
        (from, to, step): (usize, usize, usize),
        read: &mut impl FnMut(usize, &mut [u8]),
    ) -> Option<Blob> {
        let mut bytes = vec![0; (to - from) * CHANNELS];
        let (mut area, mut x, mut y) = (0, 0, 0);
        for row in rows {
            read((row * self.width + from) * CHANNELS, &mut bytes);
            let pixels = bytes.chunks_exact(CHANNELS).enumerate().step_by(step);
            for (column, _) in pixels.filter(|(_, pixel)| pixel[0] > THRESHOLD) {
                area += 1;
                x += from + column;
                y += row;
            }
        }
        let mean = |sum: usize| sum as f64 / f64::from(area);
        (area > 0).then(|| Blob { x: mean(x), y: mean(y), area })
    }
}
