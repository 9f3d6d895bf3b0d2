//! Clients truncate, unlink and unregister their memory while a request runs, by copy and in place.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::http_served::{Answer, Client, SIMPLE, Served, request, simple_json, tensor, window};
use crate::support::HANG;
use slipring::DType;
use slipring::region::{PosixShm, SigbusGuard};
use slipring_triton::{Inputs, Model, ModelError, ModelMetadata, Outputs, TensorSpec};

/// A model that copies, and pauses until the test lets it go on.
struct Gate {
    metadata: ModelMetadata,
    /// Pauses between reading and writing, instead of before reading.
    late: bool,
    reached: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Gate {
    fn wait(&self) {
        self.reached.lock().unwrap().send(()).unwrap();
        self.go.lock().unwrap().recv_timeout(HANG).unwrap();
    }
}

impl Model for Gate {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        let input = inputs.input("I")?;
        if !self.late {
            self.wait();
            return outputs.output("O", *input.shape())?.copy_from(&input);
        }
        let bytes = input.bytes()?;
        self.wait();
        // The request fails even if the model ignores the error.
        let _ = outputs.output("O", *input.shape())?.write_bytes(&bytes);
        Ok(())
    }
}

struct Stage {
    served: Served,
    reached: Receiver<()>,
    go: Sender<()>,
}

impl Stage {
    fn new(in_place: bool, late: bool) -> Self {
        SigbusGuard::install().unwrap();
        let ((reached, hears), (go, told)) = (channel(), channel());
        let metadata = ModelMetadata::new("gate")
            .input(TensorSpec::new("I", DType::Uint8, [None]))
            .output(TensorSpec::new("O", DType::Uint8, [None]));
        let (reached, told) = (Mutex::new(reached), Mutex::new(told));
        let gate = Gate { metadata, late, reached, go: told };
        let served = Served::with(|builder| builder.model(gate).in_place(in_place));
        Self { served, reached: hears, go }
    }

    /// Sends a request from the first half of `in` to the first half of `out`, and runs `act` during the model's
    /// pause.
    fn during(&self, act: impl FnOnce()) -> Answer {
        let mut client = self.start();
        self.reached.recv_timeout(HANG).unwrap();
        act();
        self.go.send(()).unwrap();
        client.answer()
    }

    fn start(&self) -> Client {
        let inputs = [tensor("I", "UINT8", &format!("[{HALF}]"), &window("in", 0, HALF))];
        let outputs = [format!(r#"{{"name":"O",{}}}"#, window("out", 0, HALF))];
        let mut client = self.served.client();
        client.start("POST", "/v2/models/gate/infer", "", request(&inputs, &outputs).as_bytes());
        client
    }

    fn lives(&self) {
        self.served.post(SIMPLE, &request(&simple_json(), &[])).ok();
        let (input, output) = self.regions();
        input.write_at(0, &[5; HALF as usize]).unwrap();
        self.during(|| ()).ok();
        let mut bytes = [0; HALF as usize];
        output.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [5; HALF as usize]);
    }

    fn regions(&self) -> (PosixShm, PosixShm) {
        self.served.post("/v2/systemsharedmemory/unregister", "").is_ok();
        (self.served.region("in", 2 * HALF), self.served.region("out", 2 * HALF))
    }
}

/// Whole pages, and longer than the kernel's copies in either mode.
const HALF: u64 = 256 << 10;

const MODES: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[test]
fn who_truncates_an_input_while_it_is_used_fails_alone() {
    for in_place in [false, true] {
        let stage = Stage::new(in_place, false);
        for len in [0, 4096, HALF - 4096, HALF - 1] {
            let (input, output) = stage.regions();
            let answer = stage.during(|| rustix::fs::ftruncate(&input, len).unwrap());
            answer.is_error(
                400,
                "shared memory region 'in' has become shorter than it was registered",
            );
            drop((input, output));
        }
        stage.lives();
    }
}

#[test]
fn who_truncates_an_output_while_it_is_written_fails_alone() {
    for (in_place, late) in MODES {
        let stage = Stage::new(in_place, late);
        for len in [0, 4096, HALF - 1] {
            let (_input, output) = stage.regions();
            let answer = stage.during(|| rustix::fs::ftruncate(&output, len).unwrap());
            answer.is_error(
                400,
                "shared memory region 'out' has become shorter than it was registered",
            );
            // The write does not extend the object.
            assert_eq!(rustix::fs::fstat(&output).unwrap().st_size as u64, len);
        }
        stage.lives();
    }
}

#[test]
fn a_region_that_is_taken_back_serves_the_request_that_uses_it() {
    for (in_place, late) in MODES {
        let stage = Stage::new(in_place, late);
        let (input, output) = stage.regions();
        input.write_at(0, &[7; HALF as usize]).unwrap();
        let served = &stage.served;
        let answer = stage.during(|| {
            served.post("/v2/systemsharedmemory/region/out/unregister", "").is_ok();
            served.post("/v2/systemsharedmemory/unregister", "").is_ok();
            assert_eq!(served.get("/v2/systemsharedmemory/status").ok(), serde_json::json!([]));
            // New requests are refused, and the names are free.
            stage.start().answer().is_error(404, "Unable to find shared memory region: 'in'");
            served.register("in", output.key(), 0, 64).is_ok();
        });
        answer.ok();
        let mut bytes = [0; HALF as usize];
        output.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; HALF as usize]);
        assert!(served.front.shared_memory().registry().going_away().unwrap().is_empty());
    }
}

#[test]
fn an_object_that_is_unlinked_stays_good() {
    for (in_place, late) in MODES {
        let stage = Stage::new(in_place, late);
        let (input, output) = stage.regions();
        input.write_at(0, &[3; HALF as usize]).unwrap();
        let unlink = |object: &PosixShm| {
            std::fs::remove_file(format!("/dev/shm{}", object.key())).unwrap();
        };
        stage.during(|| unlink(&input)).ok();
        unlink(&output);
        stage.during(|| ()).ok();
        let mut bytes = [0; HALF as usize];
        output.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [3; HALF as usize]);
    }
}

#[test]
fn a_client_that_truncates_at_random_moments_harms_nobody_else() {
    SigbusGuard::install().unwrap();
    for in_place in [false, true] {
        let served = Served::with(|builder| builder.in_place(in_place));
        let object = served.region("torn", 2 * HALF);
        let honest = served.region("honest", 2 * HALF);
        honest.write_at(0, &[9; HALF as usize]).unwrap();
        let end = Instant::now() + Duration::from_millis(700);
        let ask = |client: &mut Client, region: &str| {
            let shape = format!("[1,{HALF}]");
            let inputs = [tensor("INPUT0", "UINT8", &shape, &window(region, 0, HALF))];
            let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window(region, HALF, HALF))];
            client.call("POST", "/v2/models/identity_uint8/infer", &request(&inputs, &outputs))
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for len in (0..).map(|round: u64| (round * 12_345) % (2 * HALF)) {
                    rustix::fs::ftruncate(&object, len).unwrap();
                    rustix::fs::ftruncate(&object, 2 * HALF).unwrap();
                    if Instant::now() > end {
                        return;
                    }
                }
            });
            scope.spawn(|| {
                let mut client = served.client();
                while Instant::now() < end {
                    let answer = ask(&mut client, "torn");
                    assert!(answer.status == 200 || answer.error().1.contains("shorter"));
                }
            });
            let mut client = served.client();
            while Instant::now() < end {
                ask(&mut client, "honest").ok();
            }
        });
        ask(&mut served.client(), "torn").ok();
        ask(&mut served.client(), "honest").ok();
    }
}

/// Windows of one object, under one name or two, are copied as `memmove` does.
#[test]
fn an_output_is_what_the_input_was_where_their_windows_overlap() {
    // Several steps of a move, and a part of one.
    const LEN: u64 = 3 * (256 << 10) + 77;
    SigbusGuard::install().unwrap();
    let shape = format!("[1,{LEN}]");
    let bytes: Vec<u8> = (0..2 * LEN).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect();
    for in_place in [false, true] {
        let served = Served::with(|builder| builder.in_place(in_place));
        let object = served.region("r", 2 * LEN);
        served.register("s", object.key(), 100, 2 * LEN - 100).is_ok();
        let places = [0, 1, 63, 64, 4096, 300_000, LEN - 1, LEN];
        let towards = places.iter().flat_map(|at| [(0, *at), (*at, 0), (100 + *at, 100)]);
        for (from, to) in towards.filter(|(from, _)| *from <= LEN) {
            for twice in [false, true] {
                if twice && to < 100 {
                    continue;
                }
                object.write_at(0, &bytes).unwrap();
                let inputs = [tensor("INPUT0", "UINT8", &shape, &window("r", from, LEN))];
                let (name, at) = if twice { ("s", to - 100) } else { ("r", to) };
                let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window(name, at, LEN))];
                served.post("/v2/models/identity_uint8/infer", &request(&inputs, &outputs)).ok();
                let mut after = vec![0; bytes.len()];
                object.read_at(0, &mut after).unwrap();
                let mut expected = bytes.clone();
                expected.copy_within(from as usize..(from + LEN) as usize, to as usize);
                assert!(after == expected, "{from} to {to}, in place: {in_place}, twice: {twice}");
            }
        }
    }
}
