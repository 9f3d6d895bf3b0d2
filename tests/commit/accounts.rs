//! What a client's requests keep of a service's memory counts for the client's account until they are handled.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use slipring::commit::{
    BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused, Server,
    ServerOptions, Service,
};
use slipring::options::Resource;
use slipring::{Context, DType, ErrorKind, Options};

use crate::support::other::alone;
use crate::support::{unique_name, wait_until};

const LONG: usize = 32 << 20;

/// Keeps each long model until its door is open.
#[derive(Clone, Default)]
struct Door {
    /// Whether it is open, and how many models wait.
    state: Arc<(Mutex<(bool, usize)>, Condvar)>,
}

impl Door {
    fn open(&self) {
        self.state.0.lock().unwrap().0 = true;
        self.state.1.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.0.lock().unwrap().1
    }
}

impl Service for Door {
    type Model = ();
    type Commit = ();

    fn load(&self, _: &Caller, model: ModelSource<'_>) -> Result<((), Description), Refused> {
        let mut state = self.state.0.lock().unwrap();
        if model.to_vec()?.len() == LONG {
            state.1 += 1;
            drop(self.state.1.wait_while(state, |(open, _)| !*open).unwrap());
        }
        let buffer = |label, direction| BufferInfo::new(label, direction, DType::Uint8, [8]);
        let description = Description::new()
            .with_own_region(buffer("x", Direction::In))
            .with_own_region(buffer("y", Direction::Out));
        Ok(((), description))
    }

    fn commit(&self, _: &(), _: &Buffers) -> Result<(), Refused> {
        Ok(())
    }

    fn execute(&self, _: &(), _: &mut (), _: &Buffers) -> Result<(), Refused> {
        Ok(())
    }
}

#[test]
fn a_load_that_waits_counts_for_its_client_until_it_is_handled() {
    alone("a_load_that_waits_counts_for_its_client_until_it_is_handled", || {
        let options = Options::new().peer_limit(Resource::Memory, LONG as u64 * 3 / 2);
        let (context, name) = (Context::with_options(options).unwrap(), unique_name());
        let (door, listener) = (Door::default(), context.listen(&*name).unwrap());
        let workers = ServerOptions::new().workers(2);
        let _server = Server::with_options(&context, listener, door.clone(), workers).unwrap();
        let clients = Context::new().unwrap();
        let connect = || Client::connect(&clients, &*name).unwrap();
        let long = vec![7; LONG];
        thread::scope(|scope| {
            let first = scope.spawn(|| connect().load(&long).map(drop));
            wait_until("the first load", || door.waiting() == 1);
            let second = connect().load(&long).unwrap_err();
            assert!(matches!(second.kind(), ErrorKind::PeerDied | ErrorKind::PeerClosed));
            connect().load(b"a short one passes").unwrap();
            door.open();
            first.join().unwrap().unwrap();
        });
        connect().load(&long).unwrap();
    });
}
