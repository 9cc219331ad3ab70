------------------------------- MODULE lease -------------------------------
(***************************************************************************)
(* The lease protocol of Leasehold: rows of a table, workers that settle   *)
(* and claim them in one transaction of several statements and renew them, *)
(* a reaper, producers that commit late, and an operator who replays.      *)
(* README.md says what is modelled, what is assumed, and which code each   *)
(* action stands for.                                                      *)
(*                                                                         *)
(* Time is counted down, not up, so that the states are finite: `left` is  *)
(* what a lease still has by the clock of the database, `trust` what a     *)
(* worker still trusts it by its own (D8). A Tick takes one from all of    *)
(* them. No action of a worker has to happen before the next Tick: that is *)
(* a pause of the process, at any point and of any length.                 *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Workers,       \* e.g. {"w1", "w2"}
  Rows,          \* 1..n, in the order of their ids
  Key,           \* Key[r]: the ordering key of row r; "none" where it has none
  Lease,         \* the duration of a lease, in ticks
  MaxAttempts,
  MaxClaims,     \* bounds the model: claims of each row
  MaxStray,      \* bounds the model: requests and transactions whose sender no longer waits for the answer
  Late,          \* the rows whose transactions have not yet committed at the start, and may commit or not
  Claims,        \* bounds the model: what a pipeline claims after a settlement: "next" of its key, "any", both, or nothing
  Outcomes,      \* of "done", "dead", "retry", "release": those that occur
  Eviction,      \* whose leases the reaper takes back before they expire: "none", "dead" or "any" (a live worker as well)
  \* What the mutants change.
  Guard,         \* of renew, settle and release: "owner and token", "owner", "none"
  ReplayKeepsToken,
  TrustFrom,     \* the local deadline counts from when the request was "sent", or from its "answer"
  ClockLag,      \* by how many ticks more than the margin allows a worker's clock may fall behind during a lease
  UniqueKey,     \* the unique index on the rows of a key that are in flight
  Recheck,       \* a claim checks the condition of a row once more when it has locked it
  NextOfKey,     \* after a settlement the next of its key is the "first" unfinished row, or the one "after" the settled row
  Hears,         \* the worker takes rows as its own after the "commit", or already when the "statement" has returned them
  ReapLooksAtTime

VARIABLES
  row,    \* the table
  lease,  \* lease[w][r]: what worker w knows of its lease on row r
  main,   \* main[w]: the pipeline of w, on its way or as an open transaction, or the answer to it
  beat,   \* beat[w]: the renewal of w, or the answer to it; the heartbeat has a connection of its own
  stray,  \* requests and open transactions that may still take effect although nobody waits for their answer
  up,     \* up[w]: the process runs
  stale   \* a write changed a row on which its sender had no current lease: must never happen

vars == <<row, lease, main, beat, stray, up, stale>>

Idle == [kind |-> "idle"]
NoLease == [token |-> 0, nth |-> 0, trust |-> 0, sent |-> FALSE]
Trusted == Lease + ClockLag
NoWrite == [status |-> "none"]

Init ==
  /\ row = [r \in Rows |-> [
       status |-> IF r \in Late THEN "unwritten" ELSE "pending", owner |-> "nobody", left |-> 0, token |-> 0,
       attempts |-> 0, expiries |-> 0, wait |-> 0,
       \* Only for the properties; no action looks at them. How often the row was claimed, how often it failed or expired
       \* since it was written or replayed, whether it was ever finished, the highest token it had, and the last row of
       \* its key that had been claimed when it was committed.
       nth |-> 0, failures |-> 0, finishedOnce |-> FALSE, highest |-> 0, after |-> 0]]
  /\ lease = [w \in Workers |-> [r \in Rows |-> NoLease]]
  /\ main = [w \in Workers |-> Idle]
  /\ beat = [w \in Workers |-> Idle]
  /\ stray = {}
  /\ up = [w \in Workers |-> TRUE]
  /\ stale = FALSE

Finished(r) == row[r].status \in {"done", "dead"}
InFlight(r) == row[r].status = "leased"
SameKey(r, s) == Key[r] # "none" /\ Key[r] = Key[s]

(***************************************************************************)
(* What the statements do, in the database.                                *)
(***************************************************************************)

\* An open transaction has locked what it has written. Everybody else skips these rows, and sees them as they were.
IsOpen(m) == m.kind = "pipeline"
Locked(r, ms) == \E m \in ms : IsOpen(m) /\ m.writes[r].status # "none"
Everybody == {main[w] : w \in Workers} \cup stray

\* What a statement of a transaction sees: what was committed before the statement, and what the transaction has written.
Sees(m) == [r \in Rows |-> IF m.writes[r].status = "none" THEN row[r] ELSE m.writes[r]]

\* The head of its key, and no other row of the key is in flight; as the statement with these rows sees it.
IsHead(seen, r) ==
  /\ \A s \in Rows : SameKey(r, s) /\ s < r => seen[s].status # "pending"
  /\ \A s \in Rows : SameKey(r, s) /\ s # r => seen[s].status # "leased"

\* The part of the condition that a claim checks once more under the lock of the row.
IsClaimable(it) == it.status = "pending" /\ it.wait = 0

CanFind(seen, r) == seen[r].nth < MaxClaims /\ IsClaimable(seen[r]) /\ IsHead(seen, r)

\* The unique index refuses a second row of a key, and waits for a transaction that may or may not leave one in flight.
IndexRefuses(m, r, others) == UniqueKey /\ \E s \in Rows :
  SameKey(r, s) /\ s # r /\ ~Locked(s, others) /\ Sees(m)[s].status = "leased"
IndexWaits(r, others) == UniqueKey /\ \E s \in Rows :
  /\ SameKey(r, s) /\ s # r /\ Locked(s, others)
  /\ InFlight(s) \/ \E m \in others : IsOpen(m) /\ m.writes[s].status = "leased"

\* The lease counts from the start of the transaction. The worst case is that it begins when the pipeline is sent: then the
\* lease ends as soon as the worker no longer trusts it.
LeaseLeft(trust) == IF trust > ClockLag THEN trust - ClockLag ELSE 0
Claimed(it, w, left) == [it EXCEPT
  !.status = "leased", !.owner = w, !.left = left, !.token = @ + 1, !.nth = @ + 1,
  !.highest = IF it.token + 1 > @ THEN it.token + 1 ELSE @]

Holds(m) ==
  CASE Guard = "owner and token" -> row[m.r].owner = m.w /\ row[m.r].token = m.token
    [] Guard = "owner" -> row[m.r].owner = m.w
    [] Guard = "none" -> TRUE

\* A write may change the row only under the lease that its sender got: the same claim, not yet ended.
IsStale(m) == ~(InFlight(m.r) /\ row[m.r].nth = m.nth)

CanRenew(m) == Holds(m) /\ InFlight(m.r) /\ row[m.r].left > 0
Renewed(m) == [row EXCEPT ![m.r].left = Lease]

Ended(m) ==
  CASE m.as = "done" -> [row[m.r] EXCEPT
         !.status = "done", !.owner = "nobody", !.left = 0, !.finishedOnce = TRUE]
    [] m.as = "dead" -> [row[m.r] EXCEPT
         !.status = "dead", !.owner = "nobody", !.left = 0, !.finishedOnce = TRUE,
         !.attempts = @ + 1, !.failures = @ + 1]
    [] m.as = "retry" -> [row[m.r] EXCEPT
         !.status = "pending", !.owner = "nobody", !.left = 0, !.wait = 1, !.expiries = 0,
         !.attempts = @ + 1, !.failures = @ + 1]
    [] m.as = "release" -> [row[m.r] EXCEPT !.status = "pending", !.owner = "nobody", !.left = 0]

TakenBack(r) == [row EXCEPT ![r] =
  IF @.attempts + 1 >= MaxAttempts
  THEN [@ EXCEPT !.status = "dead", !.owner = "nobody", !.left = 0, !.finishedOnce = TRUE,
         !.attempts = @ + 1, !.expiries = @ + 1, !.failures = @ + 1]
  ELSE [@ EXCEPT !.status = "pending", !.owner = "nobody", !.left = 0,
         !.wait = IF row[r].expiries = 0 THEN 0 ELSE 1,
         !.attempts = @ + 1, !.expiries = @ + 1, !.failures = @ + 1]]

(***************************************************************************)
(* The pipeline: one transaction that settles a row, claims the next row   *)
(* of its key, and claims another row. Each statement is a step, and a     *)
(* claim is two: it finds a row in its snapshot, and takes it under its    *)
(* lock. All of it is committed or rolled back at once.                    *)
(***************************************************************************)

Pipeline(w) == [kind |-> "pipeline", w |-> w, r |-> 0, as |-> "done", token |-> 0, nth |-> 0, trust |-> Trusted,
  step |-> "sent", settled |-> "no", found |-> 0, writes |-> [r \in Rows |-> NoWrite]]

\* Without a settlement: only to claim.
SendClaim(w) ==
  /\ up[w] /\ main[w] = Idle
  /\ main' = [main EXCEPT ![w] = Pipeline(w)]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

\* While the lease is trusted. The worker may be paused between that check and the arrival of the request. Settlements that
\* are sent by themselves, after an error, are pipelines whose claims find nothing.
SendEnd(w, r, as) ==
  /\ up[w] /\ main[w] = Idle /\ lease[w][r].trust > 0
  \* The worker counts attempts as the claim reported them; under its lease nobody else does.
  /\ as = "retry" => row[r].attempts + 1 < MaxAttempts
  /\ main' = [main EXCEPT ![w] = [Pipeline(w) EXCEPT
       !.r = r, !.as = as, !.trust = IF Claims = {} THEN 0 ELSE @, !.token = lease[w][r].token, !.nth = lease[w][r].nth]]
  /\ lease' = [lease EXCEPT ![w][r].sent = TRUE]
  /\ UNCHANGED <<row, beat, stray, up, stale>>

\* The statements. Each gives the transactions that can follow from m, besides `others`; no committed row changes.

Settles(m) == m.step = "sent" /\ m.r # 0
At(p, step) == IF step # "last" THEN [p EXCEPT !.step = step]
  \* Without claims, nobody asks any more when it was sent.
  ELSE [p EXCEPT !.step = "last", !.trust = IF \E r \in Rows : p.writes[r].status = "leased" THEN @ ELSE 0]
SettledAs(m, what) == At([m EXCEPT !.settled = what, !.as = "done"],
  IF "next" \in Claims /\ Key[m.r] # "none" THEN "next" ELSE IF "any" \in Claims THEN "any" ELSE "last")

EndLease(m, others) == IF Settles(m) /\ ~Locked(m.r, others) /\ Holds(m)
  THEN {[SettledAs(m, "ended") EXCEPT !.writes[m.r] = Ended(m)]} ELSE {}

FenceOff(m, others) == IF Settles(m) /\ ~Locked(m.r, others) /\ ~Holds(m) THEN {SettledAs(m, "fenced")} ELSE {}

\* An older transaction of the worker has locked the row: the worker is told, and sends the settlement once more.
SkipLocked(m, others) == IF Settles(m) /\ Locked(m.r, others) THEN {SettledAs(m, "skipped")} ELSE {}

\* The next of the key of the settled row.
FindNext(m) == IF m.step = "next" /\ m.found = 0
  THEN {[m EXCEPT !.found = n] : n \in {h \in Rows : (h = m.r \/ SameKey(h, m.r)) /\
    IF NextOfKey = "first" THEN CanFind(Sees(m), h)
    ELSE h > m.r /\ CanFind([t \in Rows |-> IF t < m.r THEN [row[t] EXCEPT !.status = "done"] ELSE Sees(m)[t]], h)}}
  ELSE {}

\* Any row: of a key that has arrived, or in order.
FindRow(m) == IF m.found = 0 /\ (m.step = "any" \/ (m.step = "next" /\ "any" \in Claims) \/ (m.step = "sent" /\ m.r = 0))
  THEN {[m EXCEPT !.step = "any", !.found = n] : n \in {h \in Rows : CanFind(Sees(m), h)}} ELSE {}

NextStep(q) == At([q EXCEPT !.found = 0], IF q.step = "next" /\ "any" \in Claims THEN "any" ELSE "last")
CanTake(m, others) == m.found # 0 /\ ~Locked(m.found, others) /\ (Recheck => IsClaimable(Sees(m)[m.found]))

TakeRow(m, others) ==
  IF CanTake(m, others) /\ ~IndexRefuses(m, m.found, others) /\ ~IndexWaits(m.found, others)
  THEN {NextStep([m EXCEPT !.writes[m.found] = Claimed(Sees(m)[m.found], m.w, LeaseLeft(m.trust))])} ELSE {}

MissRow(m, others) == IF m.found # 0 /\ ~CanTake(m, others) THEN {NextStep(m)} ELSE {}

Statements(m, others) == EndLease(m, others) \cup FenceOff(m, others) \cup SkipLocked(m, others)
  \cup FindNext(m) \cup FindRow(m) \cup TakeRow(m, others) \cup MissRow(m, others)

\* The index refuses the row, and so the whole transaction is rolled back.
IsRefused(m, others) == CanTake(m, others) /\ IndexRefuses(m, m.found, others)

\* A claim that finds nothing, or has no room, is a step that is left out.
CanCommit(m) == m.found = 0 /\ (m.step # "sent" \/ m.r = 0)
Committed(m) == Sees(m)
CommitsStale(m) == m.settled = "ended" /\ IsStale(m)

Others(w) == {main[v] : v \in Workers \ {w}} \cup stray

Execute(w) == IsOpen(main[w]) /\ \E m \in Statements(main[w], Others(w)) :
  /\ main' = [main EXCEPT ![w] = m]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

Refuse(w) ==
  /\ IsOpen(main[w]) /\ IsRefused(main[w], Others(w))
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

\* The answer says what became of the settlement, unless it was skipped, and which rows were claimed.
Answer(m) == LET isOver == m.settled \in {"ended", "fenced"}
                 claims == {r \in Rows : m.writes[r].status = "leased"} IN
  [kind |-> "committed", w |-> m.w, r |-> IF isOver THEN m.r ELSE 0, token |-> IF isOver THEN m.token ELSE 0,
   trust |-> IF claims = {} THEN 0 ELSE m.trust,
   claims |-> [r \in Rows |-> IF r \in claims THEN [token |-> m.writes[r].token, nth |-> m.writes[r].nth]
                               ELSE [token |-> 0, nth |-> 0]]]

Commit(w) ==
  /\ IsOpen(main[w]) /\ CanCommit(main[w])
  /\ row' = Committed(main[w])
  /\ stale' = (stale \/ CommitsStale(main[w]))
  /\ main' = [main EXCEPT ![w] = Answer(main[w])]
  /\ UNCHANGED <<lease, beat, stray, up>>

\* A lease that is no longer trusted when it is heard of is worth nothing: the row stays leased until it expires.
LeaseOf(claim, trust) == IF trust = 0 THEN NoLease
                         ELSE [token |-> claim.token, nth |-> claim.nth, trust |-> trust, sent |-> FALSE]

HearPipeline(w) ==
  /\ main[w].kind = "committed"
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ lease' = [lease EXCEPT ![w] = [r \in Rows |->
       IF main[w].claims[r].token # 0
       THEN LeaseOf(main[w].claims[r], IF TrustFrom = "answer" THEN Trusted ELSE main[w].trust)
       ELSE IF r = main[w].r /\ lease[w][r].token = main[w].token THEN NoLease ELSE lease[w][r]]]
  /\ UNCHANGED <<row, beat, stray, up, stale>>

\* Only in a mutant.
HearStatement(w, r) ==
  /\ Hears = "statement" /\ IsOpen(main[w]) /\ main[w].trust > 0
  /\ main[w].writes[r].status = "leased" /\ lease[w][r].nth # main[w].writes[r].nth
  /\ lease' = [lease EXCEPT ![w][r] = LeaseOf(main[w].writes[r], main[w].trust)]
  /\ UNCHANGED <<row, main, beat, stray, up, stale>>

(***************************************************************************)
(* Renew. A row that is locked is skipped, and the worker tries again.     *)
(***************************************************************************)

SendRenewal(w, r) ==
  /\ up[w] /\ beat[w] = Idle /\ lease[w][r].trust > 0 /\ lease[w][r].trust < Trusted
  /\ beat' = [beat EXCEPT ![w] = [kind |-> "renew", w |-> w, r |-> r, token |-> lease[w][r].token,
       nth |-> lease[w][r].nth, trust |-> Trusted]]
  /\ UNCHANGED <<row, lease, main, stray, up, stale>>

Renew(w) ==
  /\ beat[w].kind = "renew" /\ ~Locked(beat[w].r, Everybody) /\ CanRenew(beat[w])
  /\ row' = Renewed(beat[w])
  /\ stale' = (stale \/ IsStale(beat[w]))
  /\ beat' = [beat EXCEPT ![w].kind = "renewed"]
  /\ UNCHANGED <<lease, main, stray, up>>

RefuseRenewal(w) ==
  /\ beat[w].kind = "renew" /\ ~Locked(beat[w].r, Everybody) /\ ~CanRenew(beat[w])
  /\ beat' = [beat EXCEPT ![w].kind = "lost", ![w].trust = 0]
  /\ UNCHANGED <<row, lease, main, stray, up, stale>>

HearRenewal(w) ==
  /\ beat[w].kind \in {"renewed", "lost"}
  /\ beat' = [beat EXCEPT ![w] = Idle]
  /\ lease' = IF lease[w][beat[w].r].token # beat[w].token \/ lease[w][beat[w].r].trust = 0 THEN lease
              ELSE IF beat[w].kind = "lost" THEN [lease EXCEPT ![w][beat[w].r] = NoLease]
              ELSE IF TrustFrom = "answer" THEN [lease EXCEPT ![w][beat[w].r].trust = Trusted]
              ELSE IF beat[w].trust = 0 THEN [lease EXCEPT ![w][beat[w].r] = NoLease]
              ELSE [lease EXCEPT ![w][beat[w].r].trust = beat[w].trust]
  /\ UNCHANGED <<row, main, stray, up, stale>>

(***************************************************************************)
(* The reaper, which skips what is locked, the operator and a producer.    *)
(***************************************************************************)

Reap(r) ==
  /\ InFlight(r) /\ ~Locked(r, Everybody) /\ (row[r].left = 0 \/ ~ReapLooksAtTime)
  /\ row' = TakenBack(r)
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

Evict(r) ==
  /\ InFlight(r) /\ ~Locked(r, Everybody) /\ row[r].left > 0
  /\ Eviction = "any" \/ (Eviction = "dead" /\ ~up[row[r].owner])
  /\ row' = TakenBack(r)
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

Replay(r) ==
  /\ Finished(r) /\ ~Locked(r, Everybody)
  /\ row' = [row EXCEPT ![r] = [@ EXCEPT
       !.status = "pending", !.attempts = 0, !.expiries = 0, !.wait = 0, !.failures = 0,
       !.token = IF ReplayKeepsToken THEN @ ELSE 0]]
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

\* The transaction that wrote the row commits. If it never does, it was rolled back.
CommitLate(r) ==
  /\ row[r].status = "unwritten"
  /\ row' = [row EXCEPT ![r].status = "pending", ![r].after = LET claimed == {s \in Rows : SameKey(r, s) /\ (
       row[s].nth > 0 \/ \E m \in Everybody : IsOpen(m) /\ (m.found = s \/ m.writes[s].status = "leased"))} IN
       IF claimed = {} THEN 0 ELSE CHOOSE s \in claimed : \A t \in claimed : t <= s]
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

(***************************************************************************)
(* What goes wrong. A transaction fails, a request is lost, an answer is   *)
(* lost. A request whose sender gives up or dies becomes a stray one, also *)
(* an open transaction: the server executes what it has received.          *)
(***************************************************************************)

Requests == {"pipeline", "renew"}
StrayFrom(m) == IF IsOpen(m) THEN m ELSE [m EXCEPT !.trust = 0]
Left(w) == {StrayFrom(m) : m \in {n \in {main[w], beat[w]} : n.kind \in Requests}}

\* Any error, or a request that never arrives. What the pipeline was to settle is settled by a later one.
RollBack(w) ==
  /\ IsOpen(main[w])
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

GiveUp(w) ==
  /\ main[w] # Idle
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ IF IsOpen(main[w])
     THEN Cardinality(stray) < MaxStray /\ stray' = stray \cup {StrayFrom(main[w])}
     ELSE stray' = stray
  /\ UNCHANGED <<row, lease, beat, up, stale>>

GiveUpRenewal(w) ==
  /\ beat[w] # Idle
  /\ beat' = [beat EXCEPT ![w] = Idle]
  /\ \/ stray' = stray
     \/ /\ beat[w].kind \in Requests /\ Cardinality(stray) < MaxStray
        /\ stray' = stray \cup {StrayFrom(beat[w])}
  /\ UNCHANGED <<row, lease, main, up, stale>>

Crash(w) ==
  /\ up[w]
  /\ up' = IF Eviction = "dead" THEN [up EXCEPT ![w] = FALSE] ELSE up   \* restarted at once
  /\ lease' = [lease EXCEPT ![w] = [r \in Rows |-> NoLease]]
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ beat' = [beat EXCEPT ![w] = Idle]
  /\ \/ stray' = stray
     \/ /\ Left(w) # {} /\ Cardinality(stray \cup Left(w)) <= MaxStray
        /\ stray' = stray \cup Left(w)
  /\ UNCHANGED <<row, stale>>

\* With the same id: the hardest case. Only eviction tells a process that is down from one that does nothing. Usually a process gets a new one.
Restart(w) ==
  /\ ~up[w]
  /\ up' = [up EXCEPT ![w] = TRUE]
  /\ UNCHANGED <<row, lease, main, beat, stray, stale>>

StrayExecute == \E m \in stray : IsOpen(m) /\ \E n \in Statements(m, Everybody \ {m}) :
  /\ stray' = (stray \ {m}) \cup {n}
  /\ UNCHANGED <<row, lease, main, beat, up, stale>>

StrayRefuse == \E m \in stray :
  /\ IsOpen(m) /\ IsRefused(m, Everybody \ {m})
  /\ stray' = stray \ {m}
  /\ UNCHANGED <<row, lease, main, beat, up, stale>>

StrayCommit == \E m \in stray :
  /\ IsOpen(m) /\ CanCommit(m)
  /\ row' = Committed(m)
  /\ stale' = (stale \/ CommitsStale(m))
  /\ stray' = stray \ {m}
  /\ UNCHANGED <<lease, main, beat, up>>

StrayRenewal == \E m \in stray :
  /\ m.kind = "renew" /\ ~Locked(m.r, Everybody) /\ CanRenew(m)
  /\ row' = Renewed(m)
  /\ stale' = (stale \/ IsStale(m))
  /\ stray' = stray \ {m}
  /\ UNCHANGED <<lease, main, beat, up>>

LoseStray == \E m \in stray :
  /\ stray' = stray \ {m}
  /\ UNCHANGED <<row, lease, main, beat, up, stale>>

(***************************************************************************)
(* Time.                                                                   *)
(***************************************************************************)

Less(n) == IF n = 0 THEN 0 ELSE n - 1
Aged(it) == IF it.status = "none" THEN it ELSE [it EXCEPT !.left = Less(@), !.wait = Less(@)]
Older(m) ==
  IF m.kind = "pipeline" THEN [m EXCEPT !.trust = Less(@), !.writes = [r \in Rows |-> Aged(m.writes[r])]]
  ELSE IF m.kind \in {"committed", "renew", "renewed"} THEN [m EXCEPT !.trust = Less(@)] ELSE m

\* A lease that is no longer trusted is dropped: the handler's signal fires, and nothing more is written under it.
Tick ==
  /\ row' = [r \in Rows |-> Aged(row[r])]
  /\ lease' = [w \in Workers |-> [r \in Rows |->
       IF lease[w][r].trust <= 1 THEN NoLease ELSE [lease[w][r] EXCEPT !.trust = @ - 1]]]
  /\ main' = [w \in Workers |-> Older(main[w])]
  /\ beat' = [w \in Workers |-> Older(beat[w])]
  /\ stray' = {Older(m) : m \in stray}
  /\ UNCHANGED <<up, stale>>

Next ==
  \/ \E w \in Workers : SendClaim(w)
  \/ \E w \in Workers, r \in Rows, as \in Outcomes : SendEnd(w, r, as)
  \/ \E w \in Workers : Execute(w)
  \/ \E w \in Workers : Refuse(w)
  \/ \E w \in Workers : Commit(w)
  \/ \E w \in Workers : HearPipeline(w)
  \/ \E w \in Workers, r \in Rows : HearStatement(w, r)
  \/ \E w \in Workers, r \in Rows : SendRenewal(w, r)
  \/ \E w \in Workers : Renew(w)
  \/ \E w \in Workers : RefuseRenewal(w)
  \/ \E w \in Workers : HearRenewal(w)
  \/ \E r \in Rows : Reap(r)
  \/ \E r \in Rows : Evict(r)
  \/ \E r \in Rows : Replay(r)
  \/ \E r \in Rows : CommitLate(r)
  \/ \E w \in Workers : RollBack(w)
  \/ \E w \in Workers : GiveUp(w)
  \/ \E w \in Workers : GiveUpRenewal(w)
  \/ \E w \in Workers : Crash(w)
  \/ \E w \in Workers : Restart(w)
  \/ StrayExecute
  \/ StrayRefuse
  \/ StrayCommit
  \/ StrayRenewal
  \/ LoseStray
  \/ Tick

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must always hold.                                                  *)
(***************************************************************************)

StaleWriteChangesNothing == ~stale

OneTrustedLease == \A r \in Rows :
  Cardinality({w \in Workers : lease[w][r].trust > 0 /\ ~lease[w][r].sent}) <= 1

TokenNeverDecreases == \A r \in Rows : row[r].token >= row[r].highest

OneInFlightPerKey == \A r, s \in Rows : r # s /\ SameKey(r, s) => ~(InFlight(r) /\ InFlight(s))

\* A row that was committed late comes before those rows of its key that had not yet been claimed.
KeysAreInOrder == \A r, s \in Rows :
  SameKey(r, s) /\ r < s /\ s > row[r].after /\ row[r].status # "unwritten" /\ row[s].finishedOnce
  => row[r].finishedOnce

DeadOnlyAfterFailure == \A r \in Rows : row[r].status = "dead" => row[r].failures > 0

AttemptsAreBounded == \A r \in Rows : row[r].attempts <= MaxAttempts

\* A row is in exactly one of its states, and a lease is complete or absent.
NothingIsLost == \A r \in Rows :
  /\ row[r].status \in {"unwritten", "pending", "leased", "done", "dead"}
  /\ InFlight(r) <=> row[r].owner # "nobody"

\* A row that is not finished waits for something that is sure to come: the end of a lease or of a delay, the reaper, a
\* claim, or another row of its key of which that is true. The head of a key is what decides.
CanMoveOn(r) == InFlight(r) \/ (row[r].status = "pending" /\ (row[r].wait > 0 \/ IsHead(row, r)))
NothingIsStuck == \A r \in Rows :
  row[r].status = "pending" => (CanMoveOn(r) \/ \E s \in Rows : SameKey(r, s) /\ s # r /\ CanMoveOn(s))
=============================================================================
