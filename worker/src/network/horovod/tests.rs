use super::*;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::PortRange;
use std::net::SocketAddr;

const RANGE: PortRange = PortRange { first: 21000, last: 21511 };
/// Time limit for events that must happen. It is long, because a test machine may be suspended for
/// seconds.
const BOUND: Duration = Duration::from_secs(60);

/// Address of a proxy that runs, with its store, until this value is dropped.
struct Served {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

fn serve_all(mut proxy: HorovodProxy, address: SocketAddr) -> Served {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut store = HorovodStore::default();
        loop {
            let (number, request) = proxy.next_request().await;
            let answer = store.answer(&request);
            proxy.answer(number, Answer::Value(answer));
        }
    });
    Served { address, _tasks: tasks }
}

fn open(job: u128) -> Served {
    let mut held = vec![ReservedPort::reserve(RANGE, JobId(job), &[LOOPBACK]).unwrap()];
    let port = held[0].port;
    let proxy = HorovodProxy::open(port, &mut held).unwrap();
    assert!(held.is_empty());
    serve_all(proxy, SocketAddr::new(LOOPBACK, port))
}

/// Sends a request and returns the answer, or an empty string if the proxy closes the connection.
async fn ask(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    let next_number = async {
        socket.write_all(request.as_bytes()).await?;
        socket.read_to_end(&mut answer).await
    };
    drop(timeout(BOUND, next_number).await.unwrap());
    String::from_utf8(answer).unwrap()
}

const GET: &str = "GET /global/0 HTTP/1.1\r\n\r\n";

#[tokio::test]
async fn ranks_leave_and_find_values() {
    let proxy = open(31);
    assert!(ask(proxy.address, GET).await.starts_with("HTTP/1.1 404 "));
    let put = "PUT /global/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\nhere";
    assert!(ask(proxy.address, put).await.starts_with("HTTP/1.1 200 "));
    let found = ask(proxy.address, GET).await;
    assert!(found.starts_with("HTTP/1.1 200 ") && found.ends_with("\r\n\r\nhere"), "{found}");
    assert!(ask(proxy.address, "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn other_users_are_not_let_in() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(accept_all(listener, |_| false, sender));
    let proxy = HorovodProxy { requests, waiting: HashMap::new(), next_number: 0, _tasks: tasks };
    let served = serve_all(proxy, address);
    assert_eq!(ask(served.address, GET).await, "");
}

#[tokio::test]
async fn a_crowd_that_does_not_ask_makes_room() {
    let proxy = open(33);
    for begun in ["", "PUT /global/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\n"] {
        let mut crowd = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            let mut silent = TcpStream::connect(proxy.address).await.unwrap();
            silent.write_all(begun.as_bytes()).await.unwrap();
            crowd.push(silent);
        }
        let answer = ask(proxy.address, GET).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        // Only as many connections were closed as were needed to make room.
        let mut kept = crowd.pop().unwrap();
        assert!(timeout(Duration::from_millis(1), kept.read(&mut [0])).await.is_err());
    }
}

#[tokio::test]
async fn a_caller_is_told_that_the_store_is_out_of_reach() {
    let mut held = vec![ReservedPort::reserve(RANGE, JobId(35), &[LOOPBACK]).unwrap()];
    let port = held[0].port;
    let mut proxy = HorovodProxy::open(port, &mut held).unwrap();
    let refused = async {
        let (number, _) = proxy.next_request().await;
        proxy.answer(number, Answer::Aborted { by: None, text: "enough".into() });
    };
    let (answer, ()) = tokio::join!(ask(SocketAddr::new(LOOPBACK, port), GET), refused);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[tokio::test]
async fn the_door_shuts_with_the_job() {
    let proxy = open(34);
    let address = proxy.address;
    drop(proxy);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[test]
fn a_port_that_is_not_held_is_not_listened_on() {
    assert!(HorovodProxy::open(21_000, &mut Vec::new()).is_err());
}
