//! An image classifier that executes by id: the client commits its buffers once, and then only ids travel.
//!
//! ```text
//! cargo run --release --features commit --example commit
//! ```
//!
//! Two processes: this one is the client, and starts the service. `commit serve NAME` and `commit classify NAME` run them
//! in two terminals. The model adds up the image's channels and writes "scores" that the client can check.
//!
//! Expect the buffers of the model, two sessions that run in turn, an update, and the time of an execution by id beside
//! the time of one that sends and maps its buffers on every request.

use std::error::Error;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use slipring::commit::{
    Buffer, BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused,
    Server, Service, Session,
};
use slipring::{Address, Context, DType};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of an image of 299 × 299 pixels in three channels.
const IMAGE: usize = 299 * 299 * 3;

struct Classifier;

impl Service for Classifier {
    type Model = ();
    /// Executions so far.
    type Commit = u64;

    fn load(&self, _: &Caller, source: ModelSource<'_>) -> Result<((), Description), Refused> {
        if source.to_vec()? != b"inception_v3" {
            return Err(Refused::new(404, "only inception_v3 is served"));
        }
        let ext = |label, dtype| BufferInfo::new(label, Direction::Ext, dtype, [1, 1000]);
        let image = BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3]);
        let description = Description::new()
            .with_own_region(image.buffer_type(3).updatable())
            .with_own_region(ext("691", DType::Uint8).buffer_type(9))
            .with_own_region(ext("689", DType::Fp32).index(1))
            .with_own_region(BufferInfo::new("690", Direction::Out, DType::Fp32, [1, 1000]));
        Ok(((), description))
    }

    /// The handler takes less than two microseconds, and never blocks.
    fn runs_inline(&self, _: &()) -> bool {
        true
    }

    fn commit(&self, _: &(), _: &Buffers) -> Result<u64, Refused> {
        Ok(0)
    }

    fn execute(&self, _: &(), runs: &mut u64, buffers: &Buffers) -> Result<(), Refused> {
        *runs += 1;
        // The score of a channel is its sum over the first row of pixels.
        let mut row = [0; 299 * 3];
        buffers.input(0)?.read_at(0, &mut row)?;
        let mut scores = [0f32; 3];
        for (at, byte) in row.into_iter().enumerate() {
            scores[at % 3] += f32::from(byte);
        }
        let bytes: Vec<u8> = scores.into_iter().flat_map(f32::to_le_bytes).collect();
        buffers.output(0)?.write_at(0, &bytes)?;
        Ok(buffers.ext(1)?.write_at(0, &(*runs as f32).to_le_bytes())?)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", name] => serve(name),
        [] => start().and_then(|(mut service, name)| {
            let done = classify(&name);
            let _ = service.kill();
            let _ = service.wait();
            done
        }),
        ["classify", name] => classify(name),
        _ => Err("usage: commit [serve NAME | classify NAME]".into()),
    };
    match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("commit: {error:#}"),
    }
    ExitCode::FAILURE
}

fn serve(name: &str) -> Outcome<()> {
    let context = Context::new()?;
    let _server = Server::new(&context, context.listen(name)?, Classifier)?;
    println!("serving @{name}");
    loop {
        std::thread::park();
    }
}

/// Starts the service in a process of its own.
fn start() -> Outcome<(Child, String)> {
    let name = Address::fresh().to_string().trim_start_matches('@').to_owned();
    let mut command = Command::new(std::env::current_exe()?);
    let service = command.args(["serve", &name]).stdout(Stdio::null()).spawn()?;
    Ok((service, name))
}

fn classify(name: &str) -> Outcome<()> {
    let context = Context::new()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let client = Client::new(context.connect_retry(name, deadline)?)?;
    let model = client.load(b"inception_v3")?;
    let [inputs, outputs, ext] = Direction::ALL.map(|direction| model.count(direction));
    println!("{inputs} input, {outputs} output, {ext} ext buffers");
    for buffer in &model.description().buffers {
        let (label, size, [n, w, h, c]) = (&buffer.label, buffer.size, buffer.nwhc);
        println!(
            "  {} {}: {label:4} {size:6} bytes, {n} x {w} x {h} x {c}",
            buffer.direction, buffer.index
        );
    }

    // Two sessions, each with an image and scores of its own. The library allocates the service's scratch memory.
    let mut frames = Vec::new();
    for session in model.sessions(2)? {
        let (image, scores) = (Buffer::alloc(IMAGE as u64)?, Buffer::alloc(4000)?);
        session.set_by_label("IFM", &image)?;
        session.set(Direction::Out, 0, &scores)?;
        let id = session.commit_with_ext()?;
        println!("session {} is committed as {id:#x}", session.index());
        frames.push((session, image, scores));
    }

    // The client draws the next image while the last one is classified.
    let mut running = None;
    for frame in 0..6u8 {
        let (session, image, scores) = &frames[frame as usize % 2];
        draw(image, frame)?;
        let execution = session.start()?;
        if let Some((execution, scores, frame)) = running.replace((execution, scores, frame)) {
            execution.wait()?;
            check(scores, frame)?;
        }
    }
    if let Some((execution, scores, frame)) = running {
        execution.wait()?;
        check(scores, frame)?;
    }
    println!("6 images by 2 sessions in turn: the scores are right");

    let (session, _, scores) = &frames[0];
    let other = Buffer::alloc(IMAGE as u64)?;
    draw(&other, 77)?;
    session.update(&[(Direction::In, 0, &other)])?;
    session.execute()?;
    check(scores, 77)?;
    println!("updated to another image: the id stays, the scores are right");

    let by_id = time(10_000, || session.execute())?;
    let by_descriptor = time(1_000, || execute_with_descriptors(session))?;
    println!(
        "an execution by id: {by_id:.2?}; with descriptors on every request: {by_descriptor:.2?}"
    );
    for (session, ..) in &frames {
        session.release()?;
    }
    Ok(model.close()?)
}

/// Executes as a service without commits does: descriptors travel, and the server maps and unmaps the memory.
fn execute_with_descriptors(session: &Session) -> slipring::Result<()> {
    session.release()?;
    session.commit_with_ext()?;
    session.execute()
}

fn draw(image: &Buffer, frame: u8) -> slipring::Result<()> {
    let pixels: Vec<u8> = (0..IMAGE).map(|at| (at % 3) as u8 * 10 + frame).collect();
    image.write_at(0, &pixels)
}

fn check(scores: &Buffer, frame: u8) -> Outcome<()> {
    let mut bytes = [0; 12];
    scores.read_at(0, &mut bytes)?;
    for (channel, score) in (0u8..).zip(bytes.chunks_exact(4)) {
        let expected = 299.0 * f32::from(channel * 10 + frame);
        if score != expected.to_le_bytes() {
            return Err(format!("channel {channel} of image {frame}: wrong score").into());
        }
    }
    Ok(())
}

/// Returns the mean time of one of `count` calls.
fn time(count: u32, mut call: impl FnMut() -> slipring::Result<()>) -> slipring::Result<Duration> {
    for _ in 0..count / 10 {
        call()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        call()?;
    }
    Ok(start.elapsed() / count)
}
