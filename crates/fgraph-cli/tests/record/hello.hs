import qualified Data.IORef as R
import Control.Exception (SomeException, evaluate, try)
import Data.List (foldl')

fibonacci :: Int -> Integer
fibonacci n = fst (foldl' (\(a, b) _ -> (b, a + b)) (0, 1) [1 .. n])

main :: IO ()
main = do
  counter <- R.newIORef (0 :: Int)
  mapM_ (\n -> R.modifyIORef' counter (+ n)) [1 .. 20000]
  R.readIORef counter >>= print
  print (fibonacci 300)
  caught <- try (evaluate (head ([] :: [Int]))) :: IO (Either SomeException Int)
  putStrLn (either (const "caught") show caught)
