//! Execution of a case in one rank.

use crate::case::{Case, Collective, Op};
use crate::value::{Value, input_value};
use half::{bf16, f16};
use rlaunch_comm::{CommError, Communicator, ElementType};

/// Runs this rank's part of a case and checks the result.
pub fn run(comm: &Communicator, case: &Case) -> Result<(), String> {
    let ran = match case.element {
        ElementType::F16 => run_with::<f16>(comm, case),
        ElementType::Bf16 => run_with::<bf16>(comm, case),
        ElementType::F32 => run_with::<f32>(comm, case),
        ElementType::F64 => run_with::<f64>(comm, case),
        ElementType::I32 => run_with::<i32>(comm, case),
        ElementType::I64 => run_with::<i64>(comm, case),
        ElementType::U8 => run_with::<u8>(comm, case),
        ElementType::U64 => run_with::<u64>(comm, case),
    };
    ran.map_err(|why| format!("rank {} of {}: {case}: {why}", comm.rank(), comm.size()))
}

/// Input and expected output of one rank. Either is empty if the rank has none in this collective.
struct Buffers<V> {
    input: Vec<V>,
    expected: Vec<V>,
    root: usize,
}

fn buffers<V: Value>(case: &Case, me: usize, size: usize) -> Buffers<V> {
    let Case { collective, op, count, .. } = *case;
    let root = (count + 1) % size;
    let whole = count * size;
    let of =
        |rank: usize, from: usize, to: usize| (from..to).map(move |at| input_value(op, rank, at));
    let reduced = |from: usize, to: usize| -> Vec<V> {
        (from..to)
            .map(|at| {
                let own = (0..size).map(|rank| input_value::<V>(op, rank, at));
                own.reduce(|a, b| V::reduced(op, a, b)).unwrap_or_else(|| V::from_number(0))
            })
            .collect()
    };
    let at_root = |values: Vec<V>| if me == root { values } else { Vec::new() };
    let block = me * count..(me + 1) * count;
    let (input, expected): (Vec<V>, Vec<V>) = match collective {
        Collective::Barrier => (Vec::new(), Vec::new()),
        Collective::Broadcast => (of(me, 0, count).collect(), of(root, 0, count).collect()),
        Collective::Reduce => (of(me, 0, count).collect(), at_root(reduced(0, count))),
        Collective::AllReduce => (of(me, 0, count).collect(), reduced(0, count)),
        Collective::Gather => {
            let all = (0..size).flat_map(|rank| of(rank, 0, count)).collect();
            (of(me, 0, count).collect(), at_root(all))
        }
        Collective::Scatter => {
            (of(root, 0, whole).collect(), of(root, block.start, block.end).collect())
        }
        Collective::AllGather => {
            let all = (0..size).flat_map(|rank| of(rank, 0, count)).collect();
            (of(me, 0, count).collect(), all)
        }
        Collective::ReduceScatter => (of(me, 0, whole).collect(), reduced(block.start, block.end)),
        Collective::AllToAll => {
            let all = (0..size).flat_map(|rank| of(rank, block.start, block.end)).collect();
            (of(me, 0, whole).collect(), all)
        }
    };
    Buffers { input, expected, root }
}

fn run_with<V: Value>(comm: &Communicator, case: &Case) -> Result<(), String> {
    let (me, size) = (comm.rank(), comm.size());
    let Buffers { input, expected, root } = buffers::<V>(case, me, size);
    let (got, from) = match case.in_place {
        true => in_place(comm, case, (input, root), expected.len()),
        false => apart(comm, case, (&input, root), expected.len()).map(|got| (got, 0)),
    }
    .map_err(|error| error.to_string())?;
    let got = &got[from..from + expected.len()];
    let wrong = (0..expected.len())
        .find(|&at| bytemuck::bytes_of(&got[at]) != bytemuck::bytes_of(&expected[at]));
    match wrong {
        Some(at) => Err(format!("element {at} is {:?}, not {:?}", got[at], expected[at])),
        None => Ok(()),
    }
}

/// Returns the contents of output buffers before the call.
fn placeholder<V: Value>(length: usize) -> Vec<V> {
    vec![V::from_number(99); length]
}

fn apart<V: Value>(
    comm: &Communicator,
    case: &Case,
    (input, root): (&[V], usize),
    length: usize,
) -> Result<Vec<V>, CommError> {
    let op = case.op;
    let mut output = match case.collective {
        Collective::Broadcast => input.to_vec(),
        _ => placeholder(length),
    };
    let to = &mut output;
    if case.later {
        comm.scope(|scope| {
            let request = match case.collective {
                Collective::Barrier => scope.ibarrier(),
                Collective::Broadcast => scope.ibroadcast(to, root),
                Collective::Reduce => scope.ireduce(input, to, op, root),
                Collective::AllReduce => scope.iall_reduce(input, to, op),
                Collective::Gather => scope.igather(input, to, root),
                Collective::Scatter => scope.iscatter(input, to, root),
                Collective::AllGather => scope.iall_gather(input, to),
                Collective::ReduceScatter => scope.ireduce_scatter(input, to, op),
                Collective::AllToAll => scope.iall_to_all(input, to),
            }?;
            scope.wait(request)
        })?;
        return Ok(output);
    }
    match case.collective {
        Collective::Barrier => comm.barrier(),
        Collective::Broadcast => comm.broadcast(to, root),
        Collective::Reduce => comm.reduce(input, to, op, root),
        Collective::AllReduce => comm.all_reduce(input, to, op),
        Collective::Gather => comm.gather(input, to, root),
        Collective::Scatter => comm.scatter(input, to, root),
        Collective::AllGather => comm.all_gather(input, to),
        Collective::ReduceScatter => comm.reduce_scatter(input, to, op),
        Collective::AllToAll => comm.all_to_all(input, to),
    }?;
    Ok(output)
}

/// Runs an in-place collective. Returns the buffer and the index at which the result begins.
fn in_place<V: Value>(
    comm: &Communicator,
    case: &Case,
    (input, root): (Vec<V>, usize),
    length: usize,
) -> Result<(Vec<V>, usize), CommError> {
    let (me, count, op) = (comm.rank(), case.count, case.op);
    // The rank's own block is already in its place among all blocks.
    let among_all = |input: &[V]| {
        let mut all = placeholder(count * comm.size());
        all[me * count..(me + 1) * count].copy_from_slice(&input[..count]);
        all
    };
    let (mut data, from) = match case.collective {
        Collective::Gather if me == root => (among_all(&input), 0),
        Collective::AllGather => (among_all(&input), 0),
        Collective::Scatter if me == root => (input, me * count),
        Collective::Scatter => (placeholder(length), 0),
        _ => (input, 0),
    };
    let to = &mut data;
    if case.later {
        comm.scope(|scope| {
            let request = match case.collective {
                Collective::Barrier => scope.ibarrier(),
                Collective::Broadcast => scope.ibroadcast(to, root),
                Collective::Reduce => scope.ireduce_in_place(to, op, root),
                Collective::AllReduce => scope.iall_reduce_in_place(to, op),
                Collective::Gather => scope.igather_in_place(to, root),
                Collective::Scatter => scope.iscatter_in_place(to, root),
                Collective::AllGather => scope.iall_gather_in_place(to),
                Collective::ReduceScatter => scope.ireduce_scatter_in_place(to, op),
                Collective::AllToAll => scope.iall_to_all_in_place(to),
            }?;
            scope.wait(request)
        })?;
        return Ok((data, from));
    }
    match case.collective {
        Collective::Barrier => comm.barrier(),
        Collective::Broadcast => comm.broadcast(to, root),
        Collective::Reduce => comm.reduce_in_place(to, op, root),
        Collective::AllReduce => comm.all_reduce_in_place(to, op),
        Collective::Gather => comm.gather_in_place(to, root),
        Collective::Scatter => comm.scatter_in_place(to, root),
        Collective::AllGather => comm.all_gather_in_place(to),
        Collective::ReduceScatter => comm.reduce_scatter_in_place(to, op),
        Collective::AllToAll => comm.all_to_all_in_place(to),
    }?;
    Ok((data, from))
}

/// Runs collectives with blocks of `count` elements, a large number, since some collectives use other
/// algorithms for long buffers. Returns the number of cases.
pub fn long(comm: &Communicator, count: usize) -> Result<usize, String> {
    let cases = [
        (Collective::AllReduce, ElementType::F32),
        (Collective::AllToAll, ElementType::U8),
        (Collective::Broadcast, ElementType::U8),
    ];
    for (collective, element) in cases {
        let (op, in_place, later) = (Op::Sum, false, false);
        run(comm, &Case { collective, element, op, count, in_place, later })?;
    }
    Ok(cases.len())
}
