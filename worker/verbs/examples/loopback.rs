//! A token one way and a block the other, by RDMA writes:
//!
//! * `loopback DEVICE GID_INDEX [MTU]` between two queue pairs of one port, out of band;
//! * `loopback listen ADDRESS:PORT` and `loopback connect FROM TO:PORT` between two hosts, by the
//!   RDMA connection manager.
//!
//! Says what went wrong, and what could be done.

use rlaunch_verbs::{
    Buffer, CompletionQueue, Connected, Context, Device, Listener, MemoryRegion, Mtu,
    ProtectionDomain, QueuePair, Route, Settings, VerbsError,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOKEN: &[u8] = b"rlaunch";
const BLOCK: usize = 64 << 10;
/// Emulated processors are slow.
const PATIENCE: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

/// One of the two.
struct End {
    domain: Arc<ProtectionDomain>,
    region: MemoryRegion,
    completions: Arc<CompletionQueue>,
}

impl End {
    fn on(context: &Arc<Context>) -> Result<End, VerbsError> {
        let domain = ProtectionDomain::allocate(context)?;
        let region = MemoryRegion::register(&domain, 2 * BLOCK)?;
        Ok(End { region, completions: CompletionQueue::create(context, 16)?, domain })
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["listen", address] => listen(address),
        ["connect", from, to] => connect(from, to),
        [device, gid_index] => out_of_band(device, gid_index, "4096"),
        [device, gid_index, mtu] => out_of_band(device, gid_index, mtu),
        _ => Err("loopback DEVICE GID_INDEX [MTU] | listen ADDRESS | connect FROM TO".into()),
    };
    match ended {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            let verbs = failure.downcast_ref::<VerbsError>();
            if let Some(hint) = verbs.and_then(VerbsError::hint) {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Takes a token and answers with a block.
fn listen(address: &str) -> Result<String, Failure> {
    let listener = Listener::bind(address.parse()?, 16)?;
    let end = End::on(listener.context())?;
    println!("listening on port {}", listener.port());
    let settings = Settings::default();
    let (pair, peer) =
        listener.accept(&end.domain, &end.completions, &end.region, &settings, PATIENCE)?;
    let mut token = [0; TOKEN.len()];
    let deadline = Instant::now() + PATIENCE;
    while token != TOKEN && Instant::now() < deadline {
        end.region.read(BLOCK, &mut token);
        std::thread::yield_now();
    }
    if token != TOKEN {
        return Err("no token came".into());
    }
    end.region.write(0, &block());
    send(&end, &pair, BLOCK, peer.buffer(BLOCK as u64))?;
    Ok(format!("{}: a token came, the block is sent", listener.context().name()))
}

/// Sends a token and waits for the block.
fn connect(from: &str, to: &str) -> Result<String, Failure> {
    let route = Route::resolve(from.parse()?, to.parse()?, PATIENCE)?;
    let end = End::on(route.context())?;
    let name = route.context().name().to_owned();
    let settings = Settings::default();
    let (pair, peer) =
        route.connect(&end.domain, &end.completions, &end.region, &settings, PATIENCE)?;
    end.region.write(0, TOKEN);
    send(&end, &pair, TOKEN.len(), peer.buffer(BLOCK as u64))?;
    let wanted = block();
    let mut came = vec![0; BLOCK];
    let deadline = Instant::now() + PATIENCE;
    while came != wanted && Instant::now() < deadline {
        end.region.read(BLOCK, &mut came);
        std::thread::yield_now();
    }
    if came != wanted {
        return Err("the block did not come".into());
    }
    Ok(format!("{name}: the block came"))
}

fn block() -> Vec<u8> {
    (0..BLOCK).map(|index| (index % 251) as u8).collect()
}

fn out_of_band(device: &str, gid_index: &str, mtu: &str) -> Result<String, Failure> {
    let mtu = Mtu::up_to(mtu.parse()?).ok_or("an MTU of 256 or more")?;
    let gid_index = Some(gid_index.parse()?);
    let context = Device::by_name(device)?.open()?;
    let prepare = || -> Result<_, VerbsError> {
        let end = End::on(&context)?;
        let pair = QueuePair::prepare(&end.domain, &end.completions, 1, gid_index)?;
        Ok((end, pair))
    };
    let ((one, first), (other, second)) = (prepare()?, prepare()?);
    let (here, there) =
        (first.endpoint().with_memory(&one.region), second.endpoint().with_memory(&other.region));
    let settings = Settings { mtu, ..Settings::default() };
    let (first, second) = (first.connect(&there, &settings)?, second.connect(&here, &settings)?);
    let started = Instant::now();
    one.region.write(0, TOKEN);
    send(&one, &first, TOKEN.len(), there.buffer(BLOCK as u64))?;
    let round_trip = started.elapsed();
    let mut token = [0; TOKEN.len()];
    other.region.read(BLOCK, &mut token);
    if token != TOKEN {
        return Err("the token is not what was sent".into());
    }
    let block = block();
    other.region.write(0, &block);
    send(&other, &second, BLOCK, here.buffer(BLOCK as u64))?;
    let mut came = vec![0; BLOCK];
    one.region.read(BLOCK, &mut came);
    if came != block {
        return Err("the block is not what was sent".into());
    }
    let mtu = settings.mtu.min(here.mtu).bytes();
    Ok(format!("{device}: token and block, MTU {mtu}, {} us", round_trip.as_micros()))
}

/// Writes the beginning of an end's memory to its peer and waits for the completion.
fn send(end: &End, pair: &QueuePair<Connected>, length: usize, to: Buffer) -> Result<(), Failure> {
    pair.write(1, end.region.part(0, length)?, to)?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(done) = end.completions.poll()?.first() {
            return match done.status.is_success() {
                true => Ok(()),
                false => Err(format!("the write ended: {}", done.status).into()),
            };
        }
        std::thread::yield_now();
    }
    Err(format!("no completion within {} s", PATIENCE.as_secs()).into())
}
