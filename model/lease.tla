------------------------------- MODULE lease -------------------------------
(***************************************************************************)
(* The lease protocol of Leasehold: rows of a table, workers that claim,   *)
(* renew, settle and release them, a reaper, and an operator who replays.  *)
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
  MaxStray,      \* bounds the model: requests on their way whose sender no longer waits for the answer
  Outcomes,      \* of "done", "dead", "retry", "release": those that occur
  Eviction,      \* whose leases the reaper takes back before they expire: "none", "dead" or "any" (a live worker as well)
  \* What the mutants change.
  Guard,         \* of renew, settle and release: "owner and token", "owner", "none"
  ReplayKeepsToken,
  TrustFrom,     \* the local deadline counts from when the request was "sent", or from its "answer"
  ClockLag,      \* by how many ticks more than the margin allows a worker's clock may fall behind during a lease
  UniqueKey,     \* the unique index on the rows of a key that are in flight
  ReapLooksAtTime

VARIABLES
  row,    \* the table
  lease,  \* lease[w][r]: what worker w knows of its lease on row r
  main,   \* main[w]: the claim, settlement or release of w that is on its way, or the answer to it
  beat,   \* beat[w]: the same for the heartbeat, which has connections of its own
  stray,  \* requests that may still reach the database although nobody waits for their answer
  up,     \* up[w]: the process runs
  stale   \* a write changed a row on which its sender had no current lease: must never happen

vars == <<row, lease, main, beat, stray, up, stale>>

Idle == [kind |-> "idle"]
NoLease == [token |-> 0, nth |-> 0, trust |-> 0, sent |-> FALSE]
Trusted == Lease + ClockLag

Init ==
  /\ row = [r \in Rows |-> [
       status |-> "pending", owner |-> "nobody", left |-> 0, token |-> 0,
       attempts |-> 0, expiries |-> 0, wait |-> 0,
       \* Only for the properties; no action looks at them. How often the row was claimed, how often it failed or expired
       \* since it was written or replayed, whether it was ever finished, and the highest token it had.
       nth |-> 0, failures |-> 0, finishedOnce |-> FALSE, highest |-> 0]]
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

\* The head of its key, and no other row of the key is in flight; as the snapshot of the claim shows it.
IsHead(r) ==
  /\ \A s \in Rows : SameKey(r, s) /\ s < r => row[s].status # "pending"
  /\ \A s \in Rows : SameKey(r, s) /\ s # r => ~InFlight(s)

\* The part of the condition that a claim checks once more under the lock of the row.
IsClaimable(r) == row[r].status = "pending" /\ row[r].wait = 0

IndexAllows(r) == UniqueKey => \A s \in Rows : SameKey(r, s) /\ s # r => ~InFlight(s)

Claimed(r, w) == [row EXCEPT ![r] = [@ EXCEPT
  !.status = "leased", !.owner = w, !.left = Lease, !.token = @ + 1, !.nth = @ + 1,
  !.highest = IF row[r].token + 1 > @ THEN row[r].token + 1 ELSE @]]

Holds(m) ==
  CASE Guard = "owner and token" -> row[m.r].owner = m.w /\ row[m.r].token = m.token
    [] Guard = "owner" -> row[m.r].owner = m.w
    [] Guard = "none" -> TRUE

\* A write may change the row only under the lease that its sender got: the same claim, not yet ended.
IsStale(m) == ~(InFlight(m.r) /\ row[m.r].nth = m.nth)

CanRenew(m) == Holds(m) /\ InFlight(m.r) /\ row[m.r].left > 0
Renewed(m) == [row EXCEPT ![m.r].left = Lease]

CanEnd(m) == Holds(m)
Ended(m) == [row EXCEPT ![m.r] =
  CASE m.as = "done" -> [@ EXCEPT
         !.status = "done", !.owner = "nobody", !.left = 0, !.finishedOnce = TRUE]
    [] m.as = "dead" -> [@ EXCEPT
         !.status = "dead", !.owner = "nobody", !.left = 0, !.finishedOnce = TRUE,
         !.attempts = @ + 1, !.failures = @ + 1]
    [] m.as = "retry" -> [@ EXCEPT
         !.status = "pending", !.owner = "nobody", !.left = 0, !.wait = 1, !.expiries = 0,
         !.attempts = @ + 1, !.failures = @ + 1]
    [] m.as = "release" -> [@ EXCEPT !.status = "pending", !.owner = "nobody", !.left = 0]]

TakenBack(r) == [row EXCEPT ![r] =
  IF @.attempts + 1 >= MaxAttempts
  THEN [@ EXCEPT !.status = "dead", !.owner = "nobody", !.left = 0, !.finishedOnce = TRUE,
         !.attempts = @ + 1, !.expiries = @ + 1, !.failures = @ + 1]
  ELSE [@ EXCEPT !.status = "pending", !.owner = "nobody", !.left = 0,
         !.wait = IF row[r].expiries = 0 THEN 0 ELSE 1,
         !.attempts = @ + 1, !.expiries = @ + 1, !.failures = @ + 1]]

(***************************************************************************)
(* Claim: sent, finds a row in its snapshot, takes it, is answered.        *)
(***************************************************************************)

SendClaim(w) ==
  /\ up[w] /\ main[w] = Idle
  /\ main' = [main EXCEPT ![w] = [kind |-> "claim", w |-> w, r |-> 0, trust |-> Trusted]]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

\* Rows without a key are taken as they are found; of a key, other statements may come in between.
FindRow(w) == \E r \in Rows :
  /\ main[w].kind = "claim" /\ main[w].r = 0
  /\ row[r].nth < MaxClaims /\ IsClaimable(r) /\ IsHead(r)
  /\ main' = [main EXCEPT ![w].r = r]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

\* The row is no longer claimable, or the index refuses it: the claim is repeated, or answered without rows.
MissRow(w) ==
  /\ main[w].kind = "claim" /\ main[w].r # 0
  /\ ~(IsClaimable(main[w].r) /\ IndexAllows(main[w].r))
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

TakeRow(w) ==
  /\ main[w].kind = "claim" /\ main[w].r # 0
  /\ IsClaimable(main[w].r) /\ IndexAllows(main[w].r)
  /\ row' = Claimed(main[w].r, w)
  /\ main' = [main EXCEPT ![w] = [kind |-> "claimed", w |-> w, r |-> main[w].r, trust |-> main[w].trust,
       token |-> row[main[w].r].token + 1, nth |-> row[main[w].r].nth + 1]]
  /\ UNCHANGED <<lease, beat, stray, up, stale>>

\* An answer that comes too late is worth nothing: the row stays leased until it expires.
HearClaim(w) ==
  /\ main[w].kind = "claimed"
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ lease' = [lease EXCEPT ![w][main[w].r] =
       IF TrustFrom = "answer" THEN [token |-> main[w].token, nth |-> main[w].nth, trust |-> Trusted, sent |-> FALSE]
       ELSE IF main[w].trust = 0 THEN NoLease
       ELSE [token |-> main[w].token, nth |-> main[w].nth, trust |-> main[w].trust, sent |-> FALSE]]
  /\ UNCHANGED <<row, beat, stray, up, stale>>

(***************************************************************************)
(* Settle and release: sent while the lease is trusted. The worker may be  *)
(* paused between that check and the arrival of the request.               *)
(***************************************************************************)

SendEnd(w, r, as) ==
  /\ up[w] /\ main[w] = Idle /\ lease[w][r].trust > 0
  \* The worker counts attempts as the claim reported them; under its lease nobody else does.
  /\ as = "retry" => row[r].attempts + 1 < MaxAttempts
  /\ main' = [main EXCEPT ![w] =
       [kind |-> "end", w |-> w, r |-> r, token |-> lease[w][r].token, nth |-> lease[w][r].nth, as |-> as]]
  /\ lease' = [lease EXCEPT ![w][r].sent = TRUE]
  /\ UNCHANGED <<row, beat, stray, up, stale>>

EndLease(w) ==
  /\ main[w].kind = "end" /\ CanEnd(main[w])
  /\ row' = Ended(main[w])
  /\ stale' = (stale \/ IsStale(main[w]))
  /\ main' = [main EXCEPT ![w] = [kind |-> "ended", w |-> w, r |-> main[w].r, token |-> main[w].token]]
  /\ UNCHANGED <<lease, beat, stray, up>>

FenceOff(w) ==
  /\ main[w].kind = "end" /\ ~CanEnd(main[w])
  /\ main' = [main EXCEPT ![w] = [kind |-> "ended", w |-> w, r |-> main[w].r, token |-> main[w].token]]
  /\ UNCHANGED <<row, lease, beat, stray, up, stale>>

HearEnd(w) ==
  /\ main[w].kind = "ended"
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ lease' = IF lease[w][main[w].r].token = main[w].token
              THEN [lease EXCEPT ![w][main[w].r] = NoLease] ELSE lease
  /\ UNCHANGED <<row, beat, stray, up, stale>>

(***************************************************************************)
(* Renew.                                                                  *)
(***************************************************************************)

SendRenewal(w, r) ==
  /\ up[w] /\ beat[w] = Idle /\ lease[w][r].trust > 0 /\ lease[w][r].trust < Trusted
  /\ beat' = [beat EXCEPT ![w] = [kind |-> "renew", w |-> w, r |-> r, token |-> lease[w][r].token,
       nth |-> lease[w][r].nth, trust |-> Trusted]]
  /\ UNCHANGED <<row, lease, main, stray, up, stale>>

Renew(w) ==
  /\ beat[w].kind = "renew" /\ CanRenew(beat[w])
  /\ row' = Renewed(beat[w])
  /\ stale' = (stale \/ IsStale(beat[w]))
  /\ beat' = [beat EXCEPT ![w].kind = "renewed"]
  /\ UNCHANGED <<lease, main, stray, up>>

RefuseRenewal(w) ==
  /\ beat[w].kind = "renew" /\ ~CanRenew(beat[w])
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
(* The reaper and the operator.                                            *)
(***************************************************************************)

Reap(r) ==
  /\ InFlight(r) /\ (row[r].left = 0 \/ ~ReapLooksAtTime)
  /\ row' = TakenBack(r)
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

Evict(r) ==
  /\ InFlight(r) /\ row[r].left > 0
  /\ Eviction = "any" \/ (Eviction = "dead" /\ ~up[row[r].owner])
  /\ row' = TakenBack(r)
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

Replay(r) ==
  /\ Finished(r)
  /\ row' = [row EXCEPT ![r] = [@ EXCEPT
       !.status = "pending", !.attempts = 0, !.expiries = 0, !.wait = 0, !.failures = 0,
       !.token = IF ReplayKeepsToken THEN @ ELSE 0]]
  /\ UNCHANGED <<lease, main, beat, stray, up, stale>>

(***************************************************************************)
(* What goes wrong. A request whose sender gives up, or dies, is lost, or  *)
(* becomes a stray one; an answer is lost.                                 *)
(***************************************************************************)

Requests == {"claim", "end", "renew"}
StrayFrom(m) == IF m.kind = "claim" THEN [m EXCEPT !.trust = 0, !.r = 0]
                ELSE IF m.kind = "renew" THEN [m EXCEPT !.trust = 0] ELSE m
Left(w) == {StrayFrom(m) : m \in {n \in {main[w], beat[w]} : n.kind \in Requests}}

GiveUp(w) ==
  /\ main[w] # Idle
  /\ main' = [main EXCEPT ![w] = Idle]
  /\ \/ stray' = stray
     \/ /\ main[w].kind \in Requests /\ Cardinality(stray) < MaxStray
        /\ stray' = stray \cup {StrayFrom(main[w])}
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

StrayClaim == \E m \in stray, r \in Rows :
  /\ m.kind = "claim" /\ row[r].nth < MaxClaims
  /\ IsClaimable(r) /\ IsHead(r)
  /\ row' = Claimed(r, m.w)
  /\ stray' = stray \ {m}
  /\ UNCHANGED <<lease, main, beat, up, stale>>

StrayEnd == \E m \in stray :
  /\ m.kind = "end" /\ CanEnd(m)
  /\ row' = Ended(m)
  /\ stale' = (stale \/ IsStale(m))
  /\ stray' = stray \ {m}
  /\ UNCHANGED <<lease, main, beat, up>>

StrayRenewal == \E m \in stray :
  /\ m.kind = "renew" /\ CanRenew(m)
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
Older(m) == IF m.kind \in {"claim", "claimed", "renew", "renewed"} THEN [m EXCEPT !.trust = Less(@)] ELSE m

\* A lease that is no longer trusted is dropped: the handler's signal fires, and nothing more is written under it.
Tick ==
  /\ row' = [r \in Rows |-> [row[r] EXCEPT !.left = Less(@), !.wait = Less(@)]]
  /\ lease' = [w \in Workers |-> [r \in Rows |->
       IF lease[w][r].trust <= 1 THEN NoLease ELSE [lease[w][r] EXCEPT !.trust = @ - 1]]]
  /\ main' = [w \in Workers |-> Older(main[w])]
  /\ beat' = [w \in Workers |-> Older(beat[w])]
  /\ UNCHANGED <<stray, up, stale>>

Next ==
  \/ \E w \in Workers : SendClaim(w)
  \/ \E w \in Workers : FindRow(w)
  \/ \E w \in Workers : MissRow(w)
  \/ \E w \in Workers : TakeRow(w)
  \/ \E w \in Workers : HearClaim(w)
  \/ \E w \in Workers, r \in Rows, as \in Outcomes : SendEnd(w, r, as)
  \/ \E w \in Workers : EndLease(w)
  \/ \E w \in Workers : FenceOff(w)
  \/ \E w \in Workers : HearEnd(w)
  \/ \E w \in Workers, r \in Rows : SendRenewal(w, r)
  \/ \E w \in Workers : Renew(w)
  \/ \E w \in Workers : RefuseRenewal(w)
  \/ \E w \in Workers : HearRenewal(w)
  \/ \E r \in Rows : Reap(r)
  \/ \E r \in Rows : Evict(r)
  \/ \E r \in Rows : Replay(r)
  \/ \E w \in Workers : GiveUp(w)
  \/ \E w \in Workers : GiveUpRenewal(w)
  \/ \E w \in Workers : Crash(w)
  \/ \E w \in Workers : Restart(w)
  \/ StrayClaim
  \/ StrayEnd
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

KeysAreInOrder == \A r, s \in Rows :
  SameKey(r, s) /\ r < s /\ row[s].finishedOnce => row[r].finishedOnce

DeadOnlyAfterFailure == \A r \in Rows : row[r].status = "dead" => row[r].failures > 0

AttemptsAreBounded == \A r \in Rows : row[r].attempts <= MaxAttempts

\* A row is in exactly one of its states, and a lease is complete or absent.
NothingIsLost == \A r \in Rows :
  /\ row[r].status \in {"pending", "leased", "done", "dead"}
  /\ InFlight(r) <=> row[r].owner # "nobody"

\* A row that is not finished waits for something that is sure to come: the end of a lease or of a delay, the reaper, a
\* claim, or another row of its key of which that is true. The head of a key is what decides.
CanMoveOn(r) == InFlight(r) \/ (row[r].status = "pending" /\ (row[r].wait > 0 \/ IsHead(r)))
NothingIsStuck == \A r \in Rows :
  row[r].status = "pending" => (CanMoveOn(r) \/ \E s \in Rows : SameKey(r, s) /\ s # r /\ CanMoveOn(s))
=============================================================================
