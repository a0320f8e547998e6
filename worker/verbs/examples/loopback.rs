//! A token one way and a block the other, by RDMA writes:
//!
//! * `loopback DEVICE GID_INDEX [MTU]` between two queue pairs of one port, out of band; the block is
//!   read, too;
//! * `loopback listen ADDRESS:PORT` and `loopback connect FROM TO:PORT [TRAFFIC_CLASS]` between two
//!   hosts, by the RDMA connection manager;
//! * `loopback refuse ADDRESS:PORT` sends two peers away, one by a word and one by none;
//! * `loopback events DEVICE SECONDS` prints what the device says meanwhile.
//!
//! Says what went wrong, and what could be done.

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
/// Emulated processors are slow.
const PATIENCE: Duration = Duration::from_secs(5);
/// And so is starting a program under supervision.
const START: Duration = Duration::from_secs(40);

type Failure = Box<dyn std::error::Error>;

/// One of the two.
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

    /// Where a peer finds its memory: address and key, 8 and 4 bytes, little-endian.
    fn word(&self) -> Vec<u8> {
        let key = self.region.rkey().to_le_bytes();
        self.region.address().to_le_bytes().into_iter().chain(key).collect()
    }
}

/// `offset` bytes into the memory of a peer that has said this.
fn buffer(said: &[u8], offset: usize) -> Result<RemoteAddr, Failure> {
    let (address, rest) = said.split_first_chunk().ok_or("the peer said too little")?;
    let (key, _) = rest.split_first_chunk().ok_or("the peer said too little")?;
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
        _ => Err("loopback DEVICE GID_INDEX [MTU], or as its first lines say".into()),
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

/// Takes a token and answers with a block.
fn listen(address: &str) -> Result<String, Failure> {
    let listener = Listener::bind(address.parse()?, 16)?;
    let end = End::on(listener.context())?;
    println!("listening on port {}", listener.port());
    let knocked = listener.request(Instant::now() + START)?.ok_or("nobody knocked")?;
    let deadline = Instant::now() + PATIENCE;
    let pair = knocked.accept(&end.resources, &end.word(), &Settings::default(), deadline)?;
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
    send(&end, &pair, BLOCK, buffer(pair.private_data(), BLOCK)?)?;
    Ok(format!("{}: a token came, the block is sent", listener.context().name()))
}

/// Sends a token and waits for the block.
fn connect(from: &str, to: &str, class: &str) -> Result<String, Failure> {
    let settings = Settings { traffic_class: class.parse()?, ..Settings::default() };
    // librdmacm opens all devices first.
    let deadline = Instant::now() + START;
    let route = Route::resolve(from.parse()?, to.parse()?, &settings, deadline)?;
    let end = End::on(route.context())?;
    let name = route.context().name().to_owned();
    let pair = route.connect(&end.resources, &end.word(), &settings, deadline)?;
    end.region.write(0, TOKEN);
    send(&end, &pair, TOKEN.len(), buffer(pair.private_data(), BLOCK)?)?;
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

/// Wants nobody.
fn refuse(address: &str) -> Result<String, Failure> {
    let listener = Listener::bind(address.parse()?, 16)?;
    println!("listening on port {}", listener.port());
    if listener.request(Instant::now())?.is_some() {
        return Err("somebody was quicker than this".into());
    }
    let next = || listener.request(Instant::now() + START)?.ok_or("nobody knocked".into());
    let knock: Result<_, Failure> = next();
    knock?.reject();
    let knock: Result<_, Failure> = next();
    drop(knock?);
    Ok("two were sent away".into())
}

/// Prints events as they come.
fn events(device: &str, seconds: &str) -> Result<String, Failure> {
    let context = Device::by_name(device)?.open()?;
    let deadline = Instant::now() + Duration::from_secs(seconds.parse()?);
    println!("watching {device}");
    while Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        context.next_event(left)?.into_iter().for_each(|event| println!("{event:?}"));
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
    send(&one, &first, TOKEN.len(), there.remote_addr(BLOCK as u64))?;
    let round_trip = started.elapsed();
    let mut token = [0; TOKEN.len()];
    other.region.read(BLOCK, &mut token);
    if token != TOKEN {
        return Err("the token is not what was sent".into());
    }
    let block = block();
    other.region.write(0, &block);
    send(&other, &second, BLOCK, here.remote_addr(BLOCK as u64))?;
    let mut came = vec![0; BLOCK];
    one.region.read(BLOCK, &mut came);
    if came != block {
        return Err("the block is not what was sent".into());
    }
    read_and_flag((&one, &first), (&other, &second), &here, &there)?;
    let mtu = settings.mtu.min(here.mtu).bytes();
    Ok(format!("{device}: token and block, MTU {mtu}, {} us", round_trip.as_micros()))
}

/// The one reads the block that the other has, and the other is told so by a word.
fn read_and_flag(
    (one, first): (&End, &QueuePair<Connected>),
    (other, second): (&End, &QueuePair<Connected>),
    here: &Endpoint,
    there: &Endpoint,
) -> Result<(), Failure> {
    one.region.fill(0, BLOCK, 0);
    first.read(2, one.region.slice(0, BLOCK)?, there.remote_addr(0))?;
    wait(one, "read")?;
    let mut came = vec![0; BLOCK];
    one.region.read(0, &mut came);
    if came != block() {
        return Err("the block is not what was read".into());
    }
    // The request carries its bytes, which are gone when this returns.
    first.write_inline(3, &FLAG.to_ne_bytes(), there.remote_addr(BLOCK as u64), true)?;
    wait(one, "inline write")?;
    if other.region.read_u64(BLOCK) != Some(FLAG) {
        return Err("the flag is not what was sent".into());
    }
    // A key that is none.
    let (address, key) = here.memory.ok_or("no memory")?;
    second.write(4, other.region.slice(0, 8)?, RemoteAddr::new(address, !key))?;
    match wait(other, "write") {
        Err(failure) if failure.to_string().contains("remote access error") => Ok(()),
        Err(failure) => Err(failure),
        Ok(()) => Err("a write with a wrong key was let in".into()),
    }
}

/// Writes the beginning of an end's memory to its peer and waits for the completion.
fn send(
    end: &End,
    pair: &QueuePair<Connected>,
    length: usize,
    to: RemoteAddr,
) -> Result<(), Failure> {
    pair.write(1, end.region.slice(0, length)?, to)?;
    wait(end, "write")
}

/// For the end of the one request that is under way.
fn wait(end: &End, what: &str) -> Result<(), Failure> {
    let completions = &end.resources.completions;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        completions.arm()?;
        if let Some(done) = completions.poll_one()? {
            return match done.status.is_success() {
                true => Ok(()),
                false => Err(format!("the {what} ended: {}", done.status).into()),
            };
        }
        end.channel.wait(deadline.saturating_duration_since(Instant::now()))?;
    }
    Err(format!("no completion within {} s", PATIENCE.as_secs()).into())
}
