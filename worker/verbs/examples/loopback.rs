//! Writes a short token in one direction and a block of 64 KiB in the other by RDMA, and checks
//! both:
//!
//! * `loopback DEVICE GID_INDEX [MTU]` does this between two queue pairs of port 1, whose endpoints
//!   are exchanged within the process. It also reads the block by RDMA.
//! * `loopback listen ADDRESS:PORT` on one host and `loopback connect FROM TO:PORT [TRAFFIC_CLASS]`
//!   on another do this over a connection of the RDMA connection manager.
//!
//! There are two more commands:
//!
//! * `loopback refuse ADDRESS:PORT` rejects two connect requests, the first by a call, the second by
//!   dropping its `ConnectRequest`.
//! * `loopback events DEVICE SECONDS` prints the device's asynchronous events for this time.
//!
//! Errors are printed with their hints.

use rlaunch_verbs::{
    CompletionChannel, CompletionQueue, Connected, Context, Depth, Device, Endpoint, Listener,
    MemoryRegion, Mtu, ProtectionDomain, QueuePair, RemoteAddr, Resources, Route, Settings,
    VerbsError,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOKEN: &[u8] = b"rlaunch";
const BLOCK: usize = 64 << 10;
const FLAG: u64 = 0x1122_3344_5566_7788;
/// Timeout of transfers; long, because tests run this on emulated processors.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of connections; longer, because the peer may be started under valgrind.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(40);

type Failure = Box<dyn std::error::Error>;

/// Resources of one end of a connection.
struct End {
    resources: Resources,
    region: MemoryRegion,
    channel: Arc<CompletionChannel>,
}

impl End {
    fn on(context: &Arc<Context>) -> Result<End, VerbsError> {
        let domain = ProtectionDomain::allocate(context)?;
        let channel = CompletionChannel::create(context)?;
        let completions = CompletionQueue::create_on(context, 16, &channel)?;
        let region = MemoryRegion::register(&domain, 2 * BLOCK)?;
        Ok(End { resources: Resources::new(&domain, &completions), region, channel })
    }

    /// Encodes the location of the memory for the peer: address (8 bytes) and rkey (4 bytes),
    /// little-endian.
    fn encode_memory(&self) -> Vec<u8> {
        let key = self.region.rkey().to_le_bytes();
        self.region.address().to_le_bytes().into_iter().chain(key).collect()
    }
}

/// Decodes the private data of a peer, and returns the address that is `offset` bytes behind the
/// start of the peer's memory.
fn remote_addr(private_data: &[u8], offset: usize) -> Result<RemoteAddr, Failure> {
    let too_short = "the peer's private data is too short";
    let (address, rest) = private_data.split_first_chunk().ok_or(too_short)?;
    let (key, _) = rest.split_first_chunk().ok_or(too_short)?;
    let address = u64::from_le_bytes(*address).wrapping_add(offset as u64);
    Ok(RemoteAddr::new(address, u32::from_le_bytes(*key)))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["listen", address] => listen(address),
        ["connect", from, to] => connect(from, to, "0"),
        ["connect", from, to, class] => connect(from, to, class),
        ["refuse", address] => refuse(address),
        ["events", device, seconds] => events(device, seconds),
        [device, gid_index] => out_of_band(device, gid_index, "4096"),
        [device, gid_index, mtu] => out_of_band(device, gid_index, mtu),
        _ => Err(
            "usage: loopback DEVICE GID_INDEX [MTU] | listen ADDRESS:PORT | connect FROM TO:PORT \
                  [TRAFFIC_CLASS] | refuse ADDRESS:PORT | events DEVICE SECONDS"
                .into(),
        ),
    };
    match ended {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let cause = failure.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("error: {failure}{cause}");
            let verbs = failure.downcast_ref::<VerbsError>();
            if let Some(hint) = verbs.and_then(VerbsError::hint) {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Waits for a peer's connection and token, and answers with the block.
fn listen(address: &str) -> Result<String, Failure> {
    let listener = Listener::bind(address.parse()?, 16)?;
    let end = End::on(listener.context())?;
    println!("listening on port {}", listener.port());
    let request = listener.next_request(Instant::now() + CONNECT_TIMEOUT)?;
    let request = request.ok_or("no connect request arrived")?;
    let (deadline, private_data) = (Instant::now() + TIMEOUT, end.encode_memory());
    let pair = request.accept(&end.resources, &private_data, &Settings::default(), deadline)?;
    let mut token = [0; TOKEN.len()];
    let deadline = Instant::now() + TIMEOUT;
    while token != TOKEN && Instant::now() < deadline {
        end.region.read(BLOCK, &mut token);
        std::thread::yield_now();
    }
    if token != TOKEN {
        return Err("no token came".into());
    }
    end.region.write(0, &block());
    write(&end, &pair, BLOCK, remote_addr(pair.private_data(), BLOCK)?)?;
    Ok(format!("{}: a token came, the block is sent", listener.context().name()))
}

/// Connects to a peer, sends the token and waits for the block.
fn connect(from: &str, to: &str, class: &str) -> Result<String, Failure> {
    let settings = Settings { traffic_class: class.parse()?, ..Settings::default() };
    // The deadline includes the time that librdmacm takes to open all devices.
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let route = Route::resolve(from.parse()?, to.parse()?, &settings, deadline)?;
    let end = End::on(route.context())?;
    let name = route.context().name().to_owned();
    let pair = route.connect(&end.resources, &end.encode_memory(), &settings, deadline)?;
    end.region.write(0, TOKEN);
    write(&end, &pair, TOKEN.len(), remote_addr(pair.private_data(), BLOCK)?)?;
    let wanted = block();
    let mut received = vec![0; BLOCK];
    let deadline = Instant::now() + TIMEOUT;
    while received != wanted && Instant::now() < deadline {
        end.region.read(BLOCK, &mut received);
        std::thread::yield_now();
    }
    if received != wanted {
        return Err("the block did not come".into());
    }
    Ok(format!("{name}: the block came"))
}

/// Rejects two connect requests.
fn refuse(address: &str) -> Result<String, Failure> {
    let listener = Listener::bind(address.parse()?, 16)?;
    println!("listening on port {}", listener.port());
    if listener.next_request(Instant::now())?.is_some() {
        return Err("a connect request arrived before the test began".into());
    }
    let next = || -> Result<_, Failure> {
        let request = listener.next_request(Instant::now() + CONNECT_TIMEOUT)?;
        Ok(request.ok_or("no connect request arrived")?)
    };
    next()?.reject();
    drop(next()?);
    Ok("two were sent away".into())
}

/// Prints the events of a device as they arrive.
fn events(device: &str, seconds: &str) -> Result<String, Failure> {
    let context = Device::by_name(device)?.open()?;
    let deadline = Instant::now() + Duration::from_secs(seconds.parse()?);
    println!("watching {device}");
    while Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Some(event) = context.next_event(left)? {
            println!("{event:?}");
        }
    }
    Ok(format!("{device}: watched"))
}

fn block() -> Vec<u8> {
    (0..BLOCK).map(|index| (index % 251) as u8).collect()
}

fn out_of_band(device: &str, gid_index: &str, mtu: &str) -> Result<String, Failure> {
    let mtu = Mtu::up_to(mtu.parse()?).ok_or("an MTU of 256 or more")?;
    let gid_index = Some(gid_index.parse()?);
    let context = Device::by_name(device)?.open()?;
    let prepare = || -> Result<_, VerbsError> {
        let mut end = End::on(&context)?;
        end.resources.depth = Depth { inline: 8, ..Depth::default() };
        let pair = QueuePair::prepare(&end.resources, 1, gid_index)?;
        Ok((end, pair))
    };
    let ((one, first), (other, second)) = (prepare()?, prepare()?);
    let (here, there) =
        (first.endpoint().with_memory(&one.region), second.endpoint().with_memory(&other.region));
    let settings = Settings { mtu, ..Settings::default() };
    let (first, second) = (first.connect(&there, &settings)?, second.connect(&here, &settings)?);
    let started = Instant::now();
    one.region.write(0, TOKEN);
    write(&one, &first, TOKEN.len(), there.remote_addr(BLOCK as u64))?;
    let round_trip = started.elapsed();
    let mut token = [0; TOKEN.len()];
    other.region.read(BLOCK, &mut token);
    if token != TOKEN {
        return Err("the token is not what was sent".into());
    }
    let block = block();
    other.region.write(0, &block);
    write(&other, &second, BLOCK, here.remote_addr(BLOCK as u64))?;
    let mut received = vec![0; BLOCK];
    one.region.read(BLOCK, &mut received);
    if received != block {
        return Err("the block is not what was sent".into());
    }
    read_and_flag((&one, &first), (&other, &second), &here, &there)?;
    let mtu = settings.mtu.min(here.mtu).bytes();
    Ok(format!("{device}: token and block, MTU {mtu}, {} us", round_trip.as_micros()))
}

/// Reads the block from the memory of `other` into that of `one`, writes a flag as inline data, and
/// checks that a write with a wrong rkey fails.
fn read_and_flag(
    (one, first): (&End, &QueuePair<Connected>),
    (other, second): (&End, &QueuePair<Connected>),
    here: &Endpoint,
    there: &Endpoint,
) -> Result<(), Failure> {
    one.region.fill(0, BLOCK, 0);
    first.read(2, one.region.slice(0, BLOCK)?, there.remote_addr(0))?;
    wait(one, "read")?;
    let mut received = vec![0; BLOCK];
    one.region.read(0, &mut received);
    if received != block() {
        return Err("the block is not what was read".into());
    }
    // The bytes are inline data: they are freed when the call returns, before the device sends
    // them.
    first.write_inline(3, &FLAG.to_ne_bytes(), there.remote_addr(BLOCK as u64), true)?;
    wait(one, "inline write")?;
    if other.region.read_u64(BLOCK) != Some(FLAG) {
        return Err("the flag is not what was sent".into());
    }
    // An rkey that no region has.
    let (address, key) = here.memory.ok_or("no memory")?;
    second.write(4, other.region.slice(0, 8)?, RemoteAddr::new(address, !key))?;
    match wait(other, "write") {
        Err(failure) if failure.to_string().contains("remote access error") => Ok(()),
        Err(failure) => Err(failure),
        Ok(()) => Err("a write with a wrong key succeeded".into()),
    }
}

/// Writes the first `length` bytes of `end`'s memory to `to` in the peer's memory, and waits for
/// the completion.
fn write(
    end: &End,
    pair: &QueuePair<Connected>,
    length: usize,
    to: RemoteAddr,
) -> Result<(), Failure> {
    pair.write(1, end.region.slice(0, length)?, to)?;
    wait(end, "write")
}

/// Waits for the completion of the only outstanding request. `what` names the request in errors.
fn wait(end: &End, what: &str) -> Result<(), Failure> {
    let completions = &end.resources.completions;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        completions.arm()?;
        if let Some(done) = completions.poll_one()? {
            return if done.status.is_success() {
                Ok(())
            } else {
                Err(format!("the {what} ended: {}", done.status).into())
            };
        }
        end.channel.wait(deadline.saturating_duration_since(Instant::now()))?;
    }
    Err(format!("no completion within {} s", TIMEOUT.as_secs()).into())
}
