from mixmatch.cli import main

main()
