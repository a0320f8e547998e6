//! Words that were given up, and those in their place.
//!
//! `word("Crew", "Nodes")` forbids the whole name `Crew`; `word("see_out", "run_to_completion")`, in
//! small letters, forbids these words in any name: `see_out_all`, `SeeOut`, `SEE_OUT`. With
//! `.in_prose()` comments and Markdown may not have them either. An entry belongs to the section of
//! the crate that gave the word up, one on a line.

use super::names::{GivenUp, Vocabulary, word};

/// The list.
pub(super) const GIVEN_UP: &[Vocabulary] = &[
    Vocabulary { crates: &[], words: EVERYWHERE },
    Vocabulary { crates: &["bootstrap"], words: BOOTSTRAP },
    Vocabulary { crates: &["launcher/console", "launcher"], words: CONSOLE },
    Vocabulary { crates: &["launcher/ssh"], words: SSH },
    Vocabulary { crates: &["launcher"], words: LAUNCHER_HOSTS_SSH_CONNECT },
    Vocabulary { crates: &["launcher"], words: LAUNCHER_PLAN },
    Vocabulary { crates: &["launcher"], words: LAUNCHER_CLI_COMMANDS },
    Vocabulary { crates: &["launcher"], words: LAUNCHER_RUN },
    Vocabulary { crates: &["worker"], words: WORKER },
    Vocabulary { crates: &["worker/sys"], words: WORKER_SYS },
    Vocabulary { crates: &["worker/lock", "worker/comm"], words: WORKER_LOCK },
    Vocabulary { crates: &["worker/verbs"], words: WORKER_VERBS },
    Vocabulary { crates: &["worker/prover", "worker/horovod"], words: PROVER_HOROVOD },
    Vocabulary { crates: &["worker/comm"], words: COMM },
    Vocabulary { crates: &["worker/comm/capi", "worker/comm/python"], words: C_AND_PYTHON },
    Vocabulary { crates: &["tests/lab", "tests/stopwatch"], words: LAB },
    Vocabulary { crates: &["tests", "tests/comm", "tests/fuzz", "tests/sim"], words: TESTS },
];

/// All crates.
const EVERYWHERE: &[GivenUp] = &[
    // One entry on a line.
];

/// Words given up in `bootstrap`.
const BOOTSTRAP: &[GivenUp] = &[
    // One entry on a line.
    word("AttemptOutcome", "EdgeFailure"),
    word("BadGather", "GatherError"),
    word("BadRoute", "RouteParseError"),
    word("Caller", "CallbackDialer"),
    word("Census", "StragglerQueries"),
    word("Conversation", "Session, SharedStream"),
    word("Crowd", "AdmissionQueue"),
    word("Dead", "EndedRank"),
    word("Disordered", "InvalidRanges"),
    word("EndTold", "PortAdvert"),
    word("Fault", "PathFault"),
    word("Input", "NodeInput, CoordinatorInput"),
    word("LocalEnd", "LocalPort"),
    word("News", "JobEvent"),
    word("OobPlan", "OobConfig"),
    word("Opening", "FirstMessage"),
    word("OwnKey", "KeyPair"),
    word("PathTold", "PathAdvert"),
    word("Reaped", "CleanupReport"),
    word("Rows", "UncheckedTable"),
    word("Server", "Coordinator"),
    word("Tidings", "NodeReport"),
    word("Typed", "Command"),
    word("Unserved", "UnservedMpi"),
    word("anew", "again, restarted"),
    word("awake", "deadline"),
    word("census", "stragglers"),
    word("crowd", "admission queue"),
    word("news", "job event"),
];

/// Words given up in `launcher/console`, and in `launcher` where it uses the console.
const CONSOLE: &[GivenUp] = &[
    // One entry on a line.
    word("Roster", "Progress"),
    word("Surroundings", "ProcessEnv"),
    word("be_quiet", "set_quiet"),
    word("while_waiting", "report_while"),
];

/// Words given up in `launcher/ssh`.
const SSH: &[GivenUp] = &[
    // One entry on a line.
    word("Again", "Retry"),
    word("Greeting", "Banner"),
    word("Holder", "SigningKey"),
    word("HungUp", "Disconnected"),
    word("Judgement", "CheckOutcome"),
    word("Legacy", "LegacyPem"),
    word("Locked", "EncryptedKey"),
    word("Looking", "KeyProbe"),
    word("Overheard", "BannerReader"),
    word("Rules", "RetryPolicy"),
    word("Silence", "ModeGuard"),
    word("Tried", "PasswordLogin"),
    word("Trouble", "RetryableFailure"),
    word("Useless", "Unusable"),
    word("Wish", "AskpassPolicy"),
    word("patient", "retry_until_up"),
    word("unsaid", "unreported"),
];

/// Words given up in `launcher`: console, hosts, ssh and connect.
const LAUNCHER_HOSTS_SSH_CONNECT: &[GivenUp] = &[
    // One entry on a line.
];

/// Words given up in `launcher`: plan.
const LAUNCHER_PLAN: &[GivenUp] = &[
    // One entry on a line.
];

/// Words given up in `launcher`: job, cli and commands.
const LAUNCHER_CLI_COMMANDS: &[GivenUp] = &[
    // One entry on a line.
    word("Abilities", "Capabilities"),
    word("AnotherArgs", "ProgramArgs"),
    word("Aside", "IgnoredKeys"),
    word("BetweenArgs", "RendezvousArgs"),
    word("EndArgs", "TerminationArgs"),
    word("Figures", "LogMetrics"),
    word("ForeignArgs", "CompatArgs"),
    word("Inward", "ContainerLogin"),
    word("Listing", "HostSelection"),
    word("ListingError", "HostSelectionError"),
    word("Meant", "Effect"),
    word("Misread", "UsageError"),
    word("OfRank", "RankCommand"),
    word("OtherNodes", "NodeCountError"),
    word("PlacingArgs", "PlacementArgs"),
    word("ProcessUse", "ProcessNetwork"),
    word("ReachArgs", "ConnectArgs"),
    word("Remark", "Finding"),
    word("Sheet", "PrintedRates"),
    word("Speller", "Translator"),
];

/// Words given up in `launcher`: run.
const LAUNCHER_RUN: &[GivenUp] = &[
    // One entry on a line.
    word("Crew", "Nodes"),
    word("crew", "nodes"),
    word("dismiss", "shutdown"),
    word("Gathering", "Connecting or JoinState"),
    word("Seat", "SessionSlot"),
    word("seat", "slot"),
    word("departures", "sessions_closed"),
    word("see_out", "run_to_completion"),
    word("see_through", "run_with_restarts"),
    word("live_recorded", "run_attempt"),
    word("Conclusion", "Outcome"),
    word("LinkWatch", "LinkMonitor"),
    word("Offer", "ProverUpload"),
    word("Pen", "LineArbiter"),
    word("Kept", "Transcript"),
    word("put_down", "end_turn"),
    word("Feeder", "StdinReader"),
    word("Lack", "Deficit"),
    word("ToldRow", "VariableRow"),
];

/// Words given up in `worker`, the agent.
const WORKER: &[GivenUp] = &[
    // One entry on a line.
    word("Arrival", "FrameEvent"),
    word("Arriving", "LibraryDownload, ProverDownload"),
    word("Backroom", "HorovodStore"),
    word("Backs", "ReturnConnections"),
    word("Dialling", "EdgeContext"),
    word("Door", "HorovodProxy, a listener"),
    word("Early", "StartupParts"),
    word("FromEdge", "EdgeEvent"),
    word("Greeted", "AuthenticatedChild"),
    word("Guest", "ExpectedHello"),
    word("Hearing", "SealedReader"),
    word("HeldPort", "ReservedPort"),
    word("Kills", "OomKillCount"),
    word("Lost", "LostAgent"),
    word("Meeting", "AgentCollective"),
    word("OfRanks", "RankLibrary"),
    word("Pen", "WriterTurn"),
    word("Said", "ToClient"),
    word("Strangers", "Unauthenticated"),
    word("Talk", "Negotiation"),
    word("Telling", "SealedWriter"),
    word("Way", "ChannelKind"),
    word("Word", "SetupMessage"),
    word("see_out", "run_to_completion"),
    word("spared", "except, prover"),
];

/// Words given up in `worker/sys`.
const WORKER_SYS: &[GivenUp] = &[
    // One entry on a line.
    word("Birth", "ForkGeneration"),
    word("Lane", "OwnedBytes"),
    word("Silence", "PeerSilence"),
    word("Start", "SpawnArgs"),
];

/// Words given up in `worker/lock`, and in `worker/comm`, which uses it.
const WORKER_LOCK: &[GivenUp] = &[
    // One entry on a line.
    word("Desk", "EngineLock"),
    word("Drawer", "Inner"),
    word("Held", "PinnedBuffer"),
    word("Lease", "RegionId"),
    word("LeasedPages", "RegionPages"),
    word("Loan", "BufferId"),
    word("Loans", "BufferTable"),
    word("Sitting", "EngineGuard"),
    word("sitting", "guard"),
];

/// Words given up in `worker/verbs`.
const WORKER_VERBS: &[GivenUp] = &[
    // One entry on a line.
    word("Slots", "BounceBuffers"),
    word("LentRegion", "UserMr"),
    word("Part", "MrSlice"),
    word("Buffer", "RemoteAddr"),
    word("Owner", "OpenedBy or CreatedBy"),
    word("Wanted", "InitAttr"),
    word("first_packet", "psn"),
    word("saying", "private_data"),
    word("Late", "TimedOut"),
    word("OtherDevice", "WrongDevice"),
    word("Meeting", "Control"),
    word("knock", "connect request"),
    word("patience", "timeout"),
];

/// Words given up in `worker/prover` and `worker/horovod`.
const PROVER_HOROVOD: &[GivenUp] = &[
    // One entry on a line.
    word("Turns", "ReadSchedule"),
    word("ConversationError", "PipeError"),
    word("Heard", "Input"),
    word("Manner", "ConnectParams"),
    word("Beats", "Heartbeats"),
    word("first_packet", "psn"),
];

/// Words given up in `worker/comm`.
const COMM: &[GivenUp] = &[
    // One entry on a line.
    word("Station", "Progress"),
    word("Came", "Status"),
    word("Stretch", "LocalSlice"),
    word("Piece", "LocalSlice"),
    word("OwnLink", "SelfLink"),
    word("Outlook", "LinkHint"),
    word("Hub", "CqPoller"),
    word("Still", "StallGuard"),
    word("Bell", "WakeFd, Doorbell"),
    word("Door", "RankListener"),
    word("Guest", "InboundConnection"),
    word("FrontDesk", "Shared"),
    word("Slips", "Mailbox"),
    word("Keeper", "ConnectThread"),
    word("Reception", "LazyConnector"),
    word("Told", "Advert"),
    word("Introduction", "PendingQp"),
    word("Ways", "Links"),
    word("Way", "LazyState"),
    word("Heard", "AgentEvent"),
    word("Patience", "SpinPolicy"),
    word("Asked", "ScheduleKey"),
    word("Given", "CollectiveBuffers"),
    word("Joined", "ConnectedQp"),
    word("Knock", "CmContext"),
    word("Farewell", "StreamEnd"),
    word("Unmet", "UnconnectedPair"),
    word("Unreached", "DialError"),
    word("Hearsay", "ReportedLost"),
    word("Garbled", "UnknownPacket"),
    word("Ragged", "PartialElement"),
    word("Uneven", "CountMismatch"),
    word("Hindered", "Failed"),
    word("is_dear", "poll_is_syscall"),
    word("seat", "relative rank"),
    word("breadth", "subtree_size"),
];

/// Words given up in `worker/comm/capi` and `worker/comm/python`.
const C_AND_PYTHON: &[GivenUp] = &[
    // One entry on a line.
    word("Begun", "OpenRequests or InFlight"),
    word("Asked", "CollectiveCall"),
    word("Keeper", "Exporter"),
    word("Described", "ArrayDescription"),
    word("Swapped", "NonNativeOrder"),
    word("hand_out", "new_request"),
];

/// Words given up in `tests/lab` and `tests/stopwatch`.
const LAB: &[GivenUp] = &[
    // One entry on a line.
    word("Look", "TidyOptions"),
    word("Extent", "PackageSet"),
    word("Need", "Requirement"),
    word("Ground", "Testbeds"),
    word("Act", "Benchmark"),
    word("Case", "Failure, VerbsCase"),
    word("Trial", "FailingJob, MeasuredJob"),
    word("Seen", "Observed"),
    word("Asked", "MeasureRequest"),
    word("Way", "Tagging"),
    word("StandIns", "StubLibraries"),
    word("Piece", "DistFile"),
    word("Cabled", "TestLab"),
    word("Shown", "Echo"),
    word("Soaked", "SoakResult"),
    word("Draft", "ReachBuilder"),
    word("lacking", "skipped, missing"),
    word("second_look", "retry"),
    word("may_it_be", "plain English").in_prose(),
];

/// The other crates of `tests`.
const TESTS: &[GivenUp] = &[
    // One entry on a line.
];
