(* Overflows its stack, and catches that, until there is a file with the name of its argument. *)

let rec depth n = if n = 0 then 0 else 1 + depth (n - 1)

let rec sum a n = if n = 0 then a + 0 else sum (a + n) (n - 1) + a

(* Calls C in each round. *)
let rec compare_all s n = if s = "x" then 0 else 1 + compare_all s (n + 1)

let rec spill a b c d e f n =
  if n = 0 then 0
  else
    let r = spill b c d e f a (n - 1) in
    r + a + (b * c) + (d * e) + (f * n)

let catch f = try ignore (f ()); 0 with Stack_overflow -> 1

let () =
  let rounds = ref 0 and caught = ref 0 in
  while not (Sys.file_exists Sys.argv.(1)) || !rounds < 3 do
    incr rounds;
    let add f = caught := !caught + catch f in
    add (fun () -> depth 100_000_000);
    add (fun () -> sum 1 100_000_000);
    add (fun () -> compare_all Sys.argv.(0) 0);
    add (fun () -> spill 1 2 3 4 5 6 100_000_000)
  done;
  Printf.printf "%b %d\n" (!caught = 4 * !rounds) (depth 1000)
